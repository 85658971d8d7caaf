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
  // of the rank that it belongs to. ResourceExhausted: the user has 1,024 open ones.
  absl::Status Connected(int fd);

  // `peer`: grpc::ServerContextBase::peer(), "fd:N" for a connection that was handed over as a descriptor.
  // PermissionDenied: the caller is no process of that rank.
  absl::Status Check(const std::string& peer, const RankKey& key);

 private:
  struct Caller {
    int fd = -1;
    ino_t inode = 0;  // of the socket: gRPC closes it, and the number is used again
    uid_t user = 0;
    pid_t pid = 0;
    std::string rank;  // already verified rank; empty: none
  };
  // Open connections of a user; forgets those that are closed.
  size_t OpenOf(uid_t user) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string run_;
  absl::Mutex mutex_;
  std::map<std::string, Caller> callers_ ABSL_GUARDED_BY(mutex_);  // one per descriptor number
};

}  // namespace muster::agent
