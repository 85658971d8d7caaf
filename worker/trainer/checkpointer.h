// Writes the checkpoints of a job: every rank of the first replica what it owns, without anybody having the whole.
//
// Training stops while the rank's part is copied into host memory; a thread then writes it. Nobody meets anybody for
// that: a shard's checksums appear in the staging folder when the shard is on disk, and the thread of rank 0 waits for
// all of them, writes the manifest and renames. At most one checkpoint is under way: Begin waits for the one before.
//
//   checkpointer.Begin(step, samples);               // after the same steps on every rank that writes()
//   while (auto done = checkpointer.Take().value())  // sooner or later
//     ...
//   checkpointer.Write(step, samples);               // the last one
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <queue>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/checkpoint.h"
#include "proto/worker.pb.h"
#include "worker/trainer/host_copy.h"
#include "worker/trainer/setup.h"

namespace muster::trainer {

// Of one thread, and owns one more while a checkpoint is under way. What it is given outlives it.
//
// Errors are of all ranks, at the latest when they next meet here or in a step; then the rank ends, and with it what is
// under way. ResourceExhausted: disk full. Unavailable: another rank's. Earlier checkpoints are as they were.
class Checkpointer {
 public:
  struct Done {
    checkpoint::Written written;
    uint64_t samples_consumed = 0;
    absl::Duration stalled;  // training waited
    absl::Duration took;     // from its step to its final name
  };

  Checkpointer(const Assignment& assignment, Rank& rank);
  ~Checkpointer();

  // Whether this rank takes part.
  bool writes() const;
  // Begun, and not known to be whole.
  bool under_way() const { return writing_ != nullptr; }

  // The state after `step`: returns when it is copied.
  absl::Status Begin(uint64_t step, uint64_t samples_consumed);
  // The same without a copy, and waits for it: on rank 0 until it has its name, on others until their part is on disk.
  absl::Status Write(uint64_t step, uint64_t samples_consumed);
  // For what is under way, likewise; nothing: returns at once. Every rank that writes calls it.
  absl::Status Wait();

  // On rank 0 the oldest that has got its name and was not taken yet. Does not wait.
  absl::StatusOr<std::optional<Done>> Take();

 private:
  class Writing;
  absl::Status Start(uint64_t step, uint64_t samples_consumed, bool copy);
  absl::Status Prepare(const checkpoint::StepName& name);
  absl::Status AwaitParts();
  absl::Status AwaitName();
  absl::Status Agree(const absl::Status& own) const;
  bool first() const { return assignment_.key().rank() == 0; }
  const std::string& path() const { return assignment_.spec().train().checkpoint().path(); }

  const Assignment& assignment_;
  Rank& rank_;
  std::optional<HostCopy> copy_;  // none: nothing is copied on purpose, or the state has its own copy on the host
  std::optional<checkpoint::StepName> begun_;  // since ranks last waited for each other's parts: the same on all
  std::unique_ptr<Writing> writing_;           // its thread may be done
  std::queue<Done> done_;
};

}  // namespace muster::trainer
