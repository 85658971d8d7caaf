// Identifies the peer processes of a Unix socket by their kernel credentials.
//
// Thread-safe.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/worker.pb.h"

namespace muster::agent {

class Callers {
 public:
  // `run`: the worker's run directory.
  explicit Callers(std::string run) : run_(std::move(run)) {}

  // Records the peer of `fd` before gRPC gets it. PermissionDenied: a process of another user, unless that is the user
  // of the rank that it belongs to.
  absl::Status Connected(int fd);

  // `peer`: grpc::ServerContextBase::peer(), "fd:N" for a connection that was handed over as a descriptor.
  // PermissionDenied: the caller is no process of that rank.
  absl::Status Check(const std::string& peer, const RankKey& key);

 private:
  struct Caller {
    pid_t pid = 0;
    std::string rank;  // already verified rank; empty: none
  };
  const std::string run_;
  absl::Mutex mutex_;
  std::map<std::string, Caller> callers_ ABSL_GUARDED_BY(mutex_);  // one per descriptor number
};

}  // namespace muster::agent
