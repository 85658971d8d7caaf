#include "coordinator/core/checkpoint_answer.h"

#include <algorithm>

namespace muster::core {

CheckpointRequested RequestedNow(const Job& job, uint64_t highest_step) {
  CheckpointRequested requested{job.generation(), highest_step};
  if (!job.checkpoints().empty() && job.checkpoints().rbegin()->generation() == job.generation()) {
    requested.after_step = std::max(requested.after_step, job.checkpoints().rbegin()->step());
  }
  return requested;
}

std::optional<PublishedCheckpoint> AnswerTo(const CheckpointRequested& requested, const Job& job, bool over) {
  if (job.checkpoints().empty()) return std::nullopt;
  const PublishedCheckpoint& newest = *job.checkpoints().rbegin();
  if (newest.generation() != requested.generation) return std::nullopt;
  const bool answers = newest.step() > requested.after_step || (over && newest.step() == requested.after_step);
  return answers ? std::optional(newest) : std::nullopt;
}

}  // namespace muster::core
