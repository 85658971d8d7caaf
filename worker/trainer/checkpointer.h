// Writes the checkpoints of a job. Each rank of the first replica writes the shard that it owns, those of all
// stages of a pipeline into one checkpoint. Where replicas keep something for themselves, all ranks write that, too.
//
// Training pauses while the shard is copied into host memory; a background thread then writes it. From a GPU the shard
// is copied while the next step runs, whose update waits for that on the device. This needs no collective: a shard's
// checksum file appears in the staging folder once the shard is on disk. Rank 0's thread waits for all checksum files,
// writes the manifest and renames the folder. At most one checkpoint is in progress: Begin waits for the previous one.
//
//   checkpointer.Begin(step, samples);               // after the same steps on every rank that writes()
//   while (auto done = checkpointer.Take().value())  // poll for completed checkpoints
//     ...
//   checkpointer.Write(step, samples);               // synchronous, after the last step
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <queue>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/checkpoint.h"
#include "proto/worker.pb.h"
#include "worker/trainer/host_copy.h"
#include "worker/trainer/setup.h"

namespace muster::trainer {

// Used from one thread; owns a second one while a checkpoint is in progress. The constructor's arguments outlive it.
//
// An error reaches all ranks at their next call here or in their next step; the rank then ends and cancels the
// checkpoint in progress. ResourceExhausted: disk full. Unavailable: another rank failed. Earlier checkpoints are
// intact.
class Checkpointer {
 public:
  struct Done {
    checkpoint::Written written;
    uint64_t samples_consumed = 0;
    absl::Duration stalled;  // how long training waited
    absl::Duration took;     // from the step to the final rename
  };

  Checkpointer(const Assignment& assignment, Rank& rank);
  ~Checkpointer();

  // Whether this rank writes a shard.
  bool writes() const;
  // A checkpoint was begun and is not known to be complete.
  bool under_way() const { return writing_ != nullptr; }

  // Checkpoints the state after `step`; returns once it is copied or, from a GPU, once that has begun. A rank that
  // lacks the host memory for a copy returns once its shard is on disk.
  absl::Status Begin(uint64_t step, uint64_t samples_consumed);
  // The same without a copy, and waits: on rank 0 for the final rename, on others until their shard is on disk.
  absl::Status Write(uint64_t step, uint64_t samples_consumed);
  // Waits for the checkpoint in progress, if any. Every rank that writes calls it.
  absl::Status Wait();

  // On rank 0, the oldest completed checkpoint not yet returned by Take. Does not wait.
  absl::StatusOr<std::optional<Done>> Take();

 private:
  class Writing;
  absl::Status Start(uint64_t step, uint64_t samples_consumed, bool copy);
  absl::Status Prepare(const checkpoint::StepName& name);
  absl::Status AwaitOwnShard();
  absl::Status AwaitAllShards();
  absl::Status AwaitName();
  absl::Status Agree(const absl::Status& own) const;
  bool OfFirstReplica() const;
  std::vector<checkpoint::TensorRun> Runs() const;  // that this rank writes
  // All ranks of a stage have its buffers; the first one writes them.
  bool WritesBuffers() const;
  bool first() const { return assignment_.key().rank() == 0; }
  const std::string& path() const { return assignment_.spec().train().checkpoint().path(); }

  const Assignment& assignment_;
  Rank& rank_;
  const bool every_replica_;                   // writes
  std::optional<HostCopy> copy_;               // none: writes are synchronous, or the engine already holds a host copy
  std::optional<checkpoint::StepName> begun_;  // begun and not yet awaited by AwaitAllShards; equal on all ranks
  std::unique_ptr<Writing> writing_;           // its thread may have finished
  std::queue<Done> done_;
};

}  // namespace muster::trainer
