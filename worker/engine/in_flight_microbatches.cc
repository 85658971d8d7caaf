#include "worker/engine/in_flight_microbatches.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace muster::engine {

using units::Activations;
using units::Context;
using units::Mode;

InFlightMicrobatches::InFlightMicrobatches(const Options& options, std::vector<Context> contexts)
    : options_(options),
      contexts_(std::move(contexts)),
      activations_(contexts_.size()),
      recomputed_(options.modules->size()),
      goes_back_(options.modules->size()) {
  for (size_t m = 0; m < contexts_.size(); ++m) states_.emplace_back(options.modules->size());
  for (const Op& op : options.schedule->ops) {
    const Pass pass = Traits(op.kind).pass;
    if (pass == Pass::kRecompute) recomputed_[op.unit] = true;
    if (pass == Pass::kBackward) goes_back_[op.unit] = true;
    if (pass != Pass::kNone && op.group >= 0) last_exchanging_ = std::max(last_exchanging_, op.unit);
  }
}

template <typename F>
Activations InFlightMicrobatches::Run(const Op& op, F&& pass) {
  if (op.group < 0) return pass();
  options_.exchanges->Begin();
  Activations result = pass();
  options_.exchanges->End(options_.inventory->units(op.unit).exchange(), Traits(op.kind).pass);
  return result;
}

Context InFlightMicrobatches::ContextOf(const Op& op) const {
  Context context = contexts_[op.microbatch];
  context.input_gradient = op.unit > 0 && goes_back_[op.unit - 1];
  if (Traits(op.kind).pass == Pass::kRecompute) context.mode = Mode::kRecompute;
  const bool saves = goes_back_[op.unit] && !recomputed_[op.unit];
  if (Traits(op.kind).pass == Pass::kForward && context.mode == Mode::kTrain && !saves) {
    context.mode = Mode::kTrainUnsaved;
  }
  return context;
}

void InFlightMicrobatches::Forward(const Op& op) {
  if (Skips(op)) return;
  Activations& flow = activations_[op.microbatch];
  if (recomputed_[op.unit]) StateOf(op).input = flow;
  flow = Run(op, [&] { return ModuleOf(op).Forward(ContextOf(op), flow, StateOf(op).saved); });
}

void InFlightMicrobatches::Recompute(const Op& op) {
  if (Skips(op)) return;
  const Activations input = std::exchange(StateOf(op).input, {});
  Run(op, [&] { return ModuleOf(op).Forward(ContextOf(op), input, StateOf(op).saved); });
}

void InFlightMicrobatches::Backward(const Op& op) {
  if (Skips(op)) return;
  // Of an empty microbatch: first what the last forward returned, whose shape its gradient has.
  Activations& flow = activations_[op.microbatch];
  flow = Run(op, [&] { return ModuleOf(op).Backward(ContextOf(op), std::exchange(StateOf(op).saved, {}), flow); });
  if (op.unit > 0 && !goes_back_[op.unit - 1]) flow.clear();
  if (Offloads(op.unit)) options_.inputs->EndUse(op.unit);
}

void InFlightMicrobatches::OffloadInput(const Op& op) {
  if (!Skips(op)) options_.inputs->Offload(op, StateOf(op).input);
}

void InFlightMicrobatches::ReleaseInput(const Op& op) {
  for (const at::Tensor& tensor : std::exchange(StateOf(op).input, {})) {
    if (options_.poison) tensor.fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

void InFlightMicrobatches::FetchInput(const Op& op) {
  if (!Skips(op)) StateOf(op).input = options_.inputs->Fetch(op);
}

Access InFlightMicrobatches::InputOf(int32_t unit, int32_t microbatch, bool write) const {
  const auto begin = reinterpret_cast<uintptr_t>(&states_[microbatch][unit].input);
  return {begin, begin + sizeof(units::Activations), write};
}

std::vector<Access> InFlightMicrobatches::Accesses(const Op& op) const {
  std::vector<Access> accesses;
  const OpTraits& traits = Traits(op.kind);
  const bool forward = traits.pass == Pass::kForward;
  if (forward && Offloads(op.unit + 1)) accesses.push_back(InputOf(op.unit + 1, op.microbatch, /*write=*/true));
  if (traits.scope != OpScope::kMicrobatch || !Offloads(op.unit)) return accesses;
  if (forward) accesses.push_back(InputOf(op.unit, op.microbatch, /*write=*/false));
  if (traits.pass == Pass::kRecompute) accesses.push_back(Reads(options_.inputs->DeviceSlot(op.unit)));
  if (traits.pass == Pass::kBackward) accesses.push_back(Writes(options_.inputs->DeviceSlot(op.unit)));
  switch (traits.inputs) {
    case InputUse::kNone:
      break;
    case InputUse::kOffload:
      accesses.push_back(InputOf(op.unit, op.microbatch, /*write=*/false));
      accesses.push_back(Writes(options_.inputs->HostSlot(op.unit)));
      break;
    case InputUse::kRelease:
      accesses.push_back(InputOf(op.unit, op.microbatch, /*write=*/true));
      break;
    case InputUse::kFetch:
      accesses.push_back(Reads(options_.inputs->HostSlot(op.unit)));
      accesses.push_back(Writes(options_.inputs->DeviceSlot(op.unit)));
      break;
  }
  return accesses;
}

}  // namespace muster::engine
