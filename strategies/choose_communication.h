// How sums and gathers between nodes travel where the spec leaves it to the planner: in two levels or one
// (Communication.hierarchy), and compressed or not (Communication.compression). Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "strategies/budget.h"
#include "strategies/fit.h"
#include "strategies/hardware.h"

namespace muster::strategies {

// A step is predicted to be so much faster before two levels are chosen, or a compression, which is lossy.
inline constexpr double kLevelsGain = 1.02, kCompressionGain = 1.1;

// With hierarchy: auto, replaces `plan`, which has one level, by one with two if its step is predicted to be faster and
// it fits where `plan` does, and sets the hierarchy of `train` to what was chosen. Other hierarchies stay. Errors of
// the budget.
absl::Status ChooseLevels(Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                          const Hardware& hardware, Budget* budget, MemoryPlan& plan);

// The same with compression: auto, of which `plan` compresses nothing: int8 or none. Of the compressions only int8 has
// been seen to learn as exact sums do with every optimizer (docs/networks.md). `reason`: what was chosen, and why.
absl::Status ChooseCompression(Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                               const Hardware& hardware, Budget* budget, MemoryPlan& plan, std::string& reason);

}  // namespace muster::strategies
