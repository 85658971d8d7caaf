// The activations of the microbatches in flight through the units.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "proto/inventory.pb.h"
#include "strategies/schedule/schedule.h"
#include "worker/engine/exchanges.h"
#include "worker/units/unit.h"

namespace muster::engine {

// Serves one pass through a schedule; the schedule and the units outlive it. An empty microbatch is skipped, except up
// to the last unit that exchanges with other ranks.
class InFlightMicrobatches {
 public:
  struct Options {
    const Schedule* schedule;  // all outlive it
    const Inventory* inventory;
    const std::vector<std::unique_ptr<units::UnitModule>>* modules;
    Exchanges* exchanges = nullptr;  // null: no op has a group
  };
  // `contexts`: one per microbatch.
  InFlightMicrobatches(const Options& options, std::vector<units::Context> contexts);

  void Forward(const Op& op);  // saves only the unit's input if the schedule recomputes it
  void Recompute(const Op& op);
  void Backward(const Op& op);

 private:
  struct UnitState {  // what one microbatch keeps at one unit
    units::Saved saved;
    units::Activations input;  // until it is recomputed
  };
  bool Skips(const Op& op) const { return contexts_[op.microbatch].samples == 0 && op.unit > last_exchanging_; }
  units::UnitModule& ModuleOf(const Op& op) const { return *(*options_.modules)[op.unit]; }
  // Runs a unit's pass, and checks what it exchanges.
  template <typename F>
  units::Activations Run(const Op& op, F&& pass);
  UnitState& StateOf(const Op& op) { return states_[op.microbatch][op.unit]; }

  const Options options_;
  const std::vector<units::Context> contexts_;
  std::vector<units::Activations> activations_;  // by microbatch: activations forward, their gradients back
  std::vector<std::vector<UnitState>> states_;
  std::vector<bool> recomputed_;  // by unit
  int32_t last_exchanging_ = -1;  // unit; -1: none
};

}  // namespace muster::engine
