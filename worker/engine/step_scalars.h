// The scalars that the ranks sum in each step, in one small all-reduce of doubles: the loss, and how many ranks ask for
// what. A counter is a number of its own, exact for any number of ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace muster::engine {

// Ranks that ask for something, so that all do it after the same step.
struct Votes {
  uint64_t stop = 0;                     // end after a checkpoint
  uint64_t stop_without_checkpoint = 0;  // end at once
  uint64_t checkpoint = 0;               // write a checkpoint and go on

  bool operator==(const Votes&) const = default;
};

// Where each lies in the reduced tensor.
enum StepScalar : size_t {
  kLossSum,
  kStopVotes,
  kStopWithoutCheckpointVotes,
  kCheckpointVotes,
  kStepScalars,  // how many there are
};
using StepScalars = std::array<double, kStepScalars>;

// Of one rank before its step: no loss yet.
inline StepScalars ToScalars(const Votes& votes) {
  StepScalars scalars{};
  scalars[kStopVotes] = static_cast<double>(votes.stop);
  scalars[kStopWithoutCheckpointVotes] = static_cast<double>(votes.stop_without_checkpoint);
  scalars[kCheckpointVotes] = static_cast<double>(votes.checkpoint);
  return scalars;
}

// `scalars`: kStepScalars of them, the sum over the ranks.
inline Votes ToVotes(const double* scalars) {
  return {.stop = static_cast<uint64_t>(scalars[kStopVotes]),
          .stop_without_checkpoint = static_cast<uint64_t>(scalars[kStopWithoutCheckpointVotes]),
          .checkpoint = static_cast<uint64_t>(scalars[kCheckpointVotes])};
}

}  // namespace muster::engine
