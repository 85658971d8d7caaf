// The activations of the microbatches in flight through the units.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "strategies/schedule/schedule.h"
#include "worker/units/unit.h"

namespace muster::engine {

// Serves one pass through a schedule; the schedule and the units outlive it. An empty microbatch is skipped.
class InFlightMicrobatches {
 public:
  // `contexts`: one per microbatch.
  InFlightMicrobatches(const Schedule& schedule, const std::vector<std::unique_ptr<units::UnitModule>>& modules,
                       std::vector<units::Context> contexts);

  void Forward(const Op& op);  // saves only the unit's input if the schedule recomputes it
  void Recompute(const Op& op);
  void Backward(const Op& op);

 private:
  struct UnitState {  // what one microbatch keeps at one unit
    units::Saved saved;
    units::Activations input;  // until it is recomputed
  };
  bool Empty(const Op& op) const { return contexts_[op.microbatch].samples == 0; }
  UnitState& StateOf(const Op& op) { return states_[op.microbatch][op.unit]; }

  const std::vector<std::unique_ptr<units::UnitModule>>& modules_;
  const std::vector<units::Context> contexts_;
  std::vector<units::Activations> activations_;  // by microbatch: activations forward, their gradients back
  std::vector<std::vector<UnitState>> states_;
  std::vector<bool> recomputed_;  // by unit
};

}  // namespace muster::engine
