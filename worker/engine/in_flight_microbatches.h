// Microbatches on their way through the units, forward and back.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "strategies/schedule/schedule.h"
#include "worker/units/unit.h"

namespace muster::engine {

// Of one pass through a schedule, which outlives it, as the units do. A microbatch without a sequence passes through
// without a word.
class InFlightMicrobatches {
 public:
  // A context for each microbatch.
  InFlightMicrobatches(const Schedule& schedule, const std::vector<std::unique_ptr<units::UnitModule>>& modules,
                       std::vector<units::Context> contexts);

  void Forward(const Op& op);  // keeps only the unit's input where the schedule recomputes
  void Recompute(const Op& op);
  void Backward(const Op& op);

 private:
  struct Stop {  // a microbatch at a unit
    units::Saved saved;
    units::Activations input;  // until it is recomputed
  };
  bool Empty(const Op& op) const { return contexts_[op.microbatch].inputs.size(0) == 0; }
  Stop& At(const Op& op) { return stops_[op.microbatch][op.unit]; }

  const std::vector<std::unique_ptr<units::UnitModule>>& modules_;
  const std::vector<units::Context> contexts_;
  std::vector<units::Activations> flowing_;  // by microbatch: activations forward, their gradients back
  std::vector<std::vector<Stop>> stops_;
  std::vector<bool> recomputed_;  // by unit
};

}  // namespace muster::engine
