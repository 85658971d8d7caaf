// State shared by the transports of one group: its peers, and whether the group has failed. Thread-safe.
#pragma once

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "worker/collectives/peers.h"

namespace muster::collectives {

class GroupStatus {
 public:
  // `timeout`: of a collective.
  GroupStatus(std::unique_ptr<Peers> peers, absl::Duration timeout) : peers_(std::move(peers)), timeout_(timeout) {}

  Peers& peers() const { return *peers_; }
  absl::Duration timeout() const { return timeout_; }

  // Fails the group, unless it has failed before. Returns `status`.
  absl::Status Fail(absl::Status status) {
    const MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = status;
    return status;
  }
  // The first failure, or OK.
  absl::Status failure() const {
    const MutexLock lock(mutex_);
    return failure_;
  }

 private:
  const std::unique_ptr<Peers> peers_;
  const absl::Duration timeout_;
  mutable Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace muster::collectives
