// Writes the checkpoints of a job: every rank of the first replica what it owns, without anybody having the whole.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "proto/worker.pb.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/trainer/setup.h"

namespace muster::trainer {

// Of one thread. What it is given outlives it.
class Checkpointer {
 public:
  Checkpointer(const Assignment& assignment, Rank& rank) : assignment_(assignment), rank_(rank) {}

  // Whether this rank takes part: then it calls Write after the same steps as the others that do.
  bool writes() const;

  // The state after `step`. On rank 0 returns when the checkpoint is whole and has its name; on others when their part
  // is on disk. An error of any rank is one of all. ResourceExhausted: disk full; earlier checkpoints are as they were.
  absl::StatusOr<std::optional<checkpoint::Written>> Write(uint64_t step, uint64_t samples_consumed);

 private:
  absl::StatusOr<std::optional<checkpoint::Written>> WriteParts(const checkpoint::StepName& name,
                                                                const Manifest& manifest);
  // Waits for the other writers. Unavailable: one of them failed, or is lost.
  absl::Status Agree(const absl::Status& own);

  const Assignment& assignment_;
  Rank& rank_;
};

}  // namespace muster::trainer
