#include "worker/engine/in_flight_microbatches.h"

#include <utility>

namespace muster::engine {

using units::Activations;
using units::Context;
using units::Mode;

InFlightMicrobatches::InFlightMicrobatches(const Schedule& schedule,
                                           const std::vector<std::unique_ptr<units::UnitModule>>& modules,
                                           std::vector<Context> contexts)
    : modules_(modules), contexts_(std::move(contexts)), activations_(contexts_.size()), recomputed_(modules.size()) {
  for (size_t m = 0; m < contexts_.size(); ++m) states_.emplace_back(modules.size());
  for (const Op& op : schedule.ops) {
    if (Traits(op.kind).pass == Pass::kRecompute) recomputed_[op.unit] = true;
  }
}

void InFlightMicrobatches::Forward(const Op& op) {
  if (Empty(op)) return;
  Activations& flow = activations_[op.microbatch];
  if (!recomputed_[op.unit]) {
    flow = modules_[op.unit]->Forward(contexts_[op.microbatch], flow, StateOf(op).saved);
    return;
  }
  Context context = contexts_[op.microbatch];
  context.mode = Mode::kTrainUnsaved;
  units::Saved none;
  StateOf(op).input = flow;
  flow = modules_[op.unit]->Forward(context, flow, none);
}

void InFlightMicrobatches::Recompute(const Op& op) {
  if (Empty(op)) return;
  Context context = contexts_[op.microbatch];
  context.mode = Mode::kRecompute;
  const Activations input = std::exchange(StateOf(op).input, {});
  modules_[op.unit]->Forward(context, input, StateOf(op).saved);
}

void InFlightMicrobatches::Backward(const Op& op) {
  if (Empty(op)) return;
  Activations& flow = activations_[op.microbatch];
  flow = modules_[op.unit]->Backward(contexts_[op.microbatch], std::exchange(StateOf(op).saved, {}), flow);
}

}  // namespace muster::engine
