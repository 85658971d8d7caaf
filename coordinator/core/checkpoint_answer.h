// Which published checkpoint answers a request for one (CheckpointJob). Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "proto/job.pb.h"

namespace muster::core {

// What was known when the request was made.
struct CheckpointRequested {
  uint64_t generation = 0;  // that writes it
  uint64_t after_step = 0;  // the highest step that any rank had reported
};
// `highest_step`: as Core::HighestStep.
CheckpointRequested RequestedNow(const Job& job, uint64_t highest_step);

// The checkpoint was written after the request: its step is later than the highest one known at that time. When the
// generation is `over`, its last checkpoint may be of exactly that step. nullopt: there is none yet.
std::optional<PublishedCheckpoint> AnswerTo(const CheckpointRequested& requested, const Job& job, bool over);

}  // namespace muster::core
