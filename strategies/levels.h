// Whether gathers and reductions of ranks on several nodes have two levels (Communication.hierarchy). Pure.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "strategies/budget.h"
#include "strategies/fit.h"
#include "strategies/hardware.h"

namespace muster::strategies {

// A step is predicted to be so much faster before two levels are chosen.
inline constexpr double kLevelsGain = 1.02;

// With hierarchy: auto, replaces `plan`, which has one level, by one with two if its step is predicted to be faster and
// it fits where `plan` does, and sets the hierarchy of `train` to what was chosen. Other hierarchies stay. Errors of
// the budget.
absl::Status ChooseLevels(Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                          const Hardware& hardware, Budget* budget, MemoryPlan& plan);

}  // namespace muster::strategies
