// When the votes of a step take effect: after the same step on all ranks.
//
// A rank may have issued `ahead` more steps when it reads the votes of one, and another rank fewer: it drained for a
// trace or a checkpoint. A rank that acted at once would stop while its peers wait for it in the next step.
//
//   votes.Add(step, result.votes);
//   if (votes.DueAfter(step)) Act(votes.Take());   // with no step in flight
#pragma once

#include <cstdint>
#include <utility>

#include "worker/engine/step_scalars.h"

namespace muster::trainer {

class PendingVotes {
 public:
  // `ahead`: how many steps a rank may issue before it reads the result of one.
  explicit PendingVotes(uint64_t ahead) : ahead_(ahead) {}

  // The votes of all ranks in `step`.
  void Add(uint64_t step, const engine::Votes& votes) {
    if (votes == engine::Votes()) return;
    sum_.stop += votes.stop;
    sum_.stop_without_checkpoint += votes.stop_without_checkpoint;
    sum_.checkpoint += votes.checkpoint;
    if (due_ == 0) due_ = step + ahead_;
  }

  bool DueAfter(uint64_t step) const { return due_ != 0 && due_ == step; }

  engine::Votes Take() {
    due_ = 0;
    return std::exchange(sum_, {});
  }

 private:
  const uint64_t ahead_;
  engine::Votes sum_;
  uint64_t due_ = 0;  // the step, from 1 on; 0: no votes
};

}  // namespace muster::trainer
