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
      chunks_(ChunksOf(*options.inventory)),
      chunk_of_(ChunkByUnit(*options.inventory)),
      flows_(contexts_.size(), std::vector<Activations>(chunks_.size())),
      received_{flows_, flows_},
      outputs_{flows_, flows_},
      recomputed_(options.modules->size()),
      goes_back_(options.modules->size()) {
  for (size_t m = 0; m < contexts_.size(); ++m) states_.emplace_back(options.modules->size());
  for (const Op& op : options.schedule->ops) {
    const Pass pass = Traits(op.kind).pass;
    if (pass == Pass::kRecompute) recomputed_[op.unit] = true;
    if (GoesBack(op.kind)) goes_back_[op.unit] = true;
    if (pass != Pass::kNone && op.group == kExchangeGroup) last_exchanging_ = std::max(last_exchanging_, op.unit);
  }
}

template <typename F>
Activations InFlightMicrobatches::Run(const Op& op, F&& pass) {
  if (op.group < 0) return pass();
  const Unit& unit = options_.inventory->units(op.unit);
  if (op.group == kExchangeGroup) {
    options_.exchanges->Begin();
    Activations result = pass();
    options_.exchanges->End(unit.exchange(), Traits(op.kind).pass);
    return result;
  }
  TensorExchanges* const tensor = op.group == kContextGroup ? nullptr : options_.tensor;
  TensorExchanges* const sequence = op.group == kTensorGroup ? nullptr : options_.sequence;
  if (tensor != nullptr) tensor->Begin();
  if (sequence != nullptr) sequence->Begin();
  Activations result = pass();
  const Context& context = contexts_[op.microbatch];
  const auto end = [&](const TensorExchanges& exchanges, const TensorExchange& declared) {
    exchanges.End(declared, *options_.inventory, unit, Traits(op.kind).pass, context.mode == Mode::kEvaluate,
                  options_.compute != at::kFloat, context.samples);
  };
  if (tensor != nullptr) end(*tensor, unit.tensor_exchange());
  if (sequence != nullptr) end(*sequence, unit.context_exchange());
  return result;
}

Context InFlightMicrobatches::ContextOf(const Op& op) const {
  Context context = contexts_[op.microbatch];
  const ChunkEdges* edges = EdgesOf(op);
  const bool from_stage = edges != nullptr && edges->receive >= 0 && op.unit == chunks_[chunk_of_[op.unit]].begin;
  context.input_gradient = from_stage ? edges->send_gradient >= 0 : op.unit > 0 && goes_back_[op.unit - 1];
  if (Traits(op.kind).pass == Pass::kRecompute) context.mode = Mode::kRecompute;
  const bool saves = goes_back_[op.unit] && !recomputed_[op.unit];
  if (Traits(op.kind).pass == Pass::kForward && context.mode == Mode::kTrain && !saves) {
    context.mode = Mode::kTrainUnsaved;
  }
  return context;
}

const ChunkEdges* InFlightMicrobatches::EdgesOf(const Op& op) const {
  const std::vector<ChunkEdges>& edges = options_.schedule->edges;
  return edges.empty() ? nullptr : &edges[chunk_of_[op.unit]];
}

void InFlightMicrobatches::BeginChunk(const Op& op) {
  const int32_t chunk = chunk_of_[op.unit];
  const ChunkSpan& span = chunks_[chunk];
  const ChunkEdges* edges = EdgesOf(op);
  const bool forward = Traits(op.kind).pass == Pass::kForward;
  std::vector<Activations>& flows = flows_[op.microbatch];
  if (edges == nullptr) return;
  if (forward && op.unit == span.begin) {
    if (edges->receive >= 0) flows[chunk] = std::exchange(received_[0][op.microbatch][chunk], {});
    if (edges->receive < 0 && !span.first) flows[chunk] = std::exchange(flows[chunk - 1], {});
  }
  if (!forward && op.unit == span.end - 1) {
    if (edges->receive_gradient >= 0) flows[chunk] = std::exchange(received_[1][op.microbatch][chunk], {});
    if (edges->receive_gradient < 0 && !span.last) flows[chunk] = std::exchange(flows[chunk + 1], {});
  }
  if (!Sends(op)) return;
  std::deque<Activations*>& sent = sent_[forward ? edges->send : edges->send_gradient];
  if (sent.size() < kOutputsInFlight) return;
  sent.front()->clear();  // the pass has waited for its send
  sent.pop_front();
}

bool InFlightMicrobatches::Sends(const Op& op) const {
  const ChunkEdges* edges = EdgesOf(op);
  const ChunkSpan& span = chunks_[chunk_of_[op.unit]];
  if (edges == nullptr) return false;
  if (Traits(op.kind).pass == Pass::kForward) return edges->send >= 0 && op.unit == span.end - 1;
  return edges->send_gradient >= 0 && op.unit == span.begin;
}

bool InFlightMicrobatches::HandsOver(const Op& op) const {
  const ChunkEdges* edges = EdgesOf(op);
  const ChunkSpan& span = chunks_[chunk_of_[op.unit]];
  if (edges == nullptr) return false;
  if (Traits(op.kind).pass == Pass::kForward) return edges->send < 0 && !span.last && op.unit == span.end - 1;
  return edges->send_gradient < 0 && !span.first && op.unit == span.begin;
}

void InFlightMicrobatches::EndChunk(const Op& op) {
  const bool sends = Sends(op);
  if (!sends && !HandsOver(op)) return;
  // A pass may return the slot that it was given. What is received there next, and what is allocated next, waits for
  // this op alone: neither for the send nor for the other chunk. So copies are made here, on the stream of the passes.
  for (at::Tensor& tensor : FlowOf(op)) {
    if (!tensor.defined()) continue;  // Send refuses it
    if (options_.received->Owns(tensor)) tensor = tensor.clone(at::MemoryFormat::Contiguous);
    if (sends) tensor = tensor.contiguous();
  }
  if (!sends) return;
  const int direction = Traits(op.kind).pass == Pass::kForward ? 0 : 1;
  outputs_[direction][op.microbatch][chunk_of_[op.unit]] = std::exchange(FlowOf(op), {});
}

std::vector<std::unique_ptr<collectives::Work>> InFlightMicrobatches::Receive(const Op& op) {
  const int direction = Traits(op.kind).edge == EdgeUse::kReceiveActivation ? 0 : 1;
  const int64_t samples = contexts_[op.microbatch].samples;
  std::vector<std::unique_ptr<collectives::Work>> works;
  Activations& received = received_[direction][op.microbatch][chunk_of_[op.unit]];
  received = options_.received->TensorsOf(op, samples);
  if (samples == 0) return works;
  for (const at::Tensor& tensor : received) works.push_back((*options_.groups)[op.group]->Recv(tensor, /*from=*/0));
  return works;
}

std::vector<std::unique_ptr<collectives::Work>> InFlightMicrobatches::Send(const Op& op) {
  const int direction = Traits(op.kind).edge == EdgeUse::kSendActivation ? 0 : 1;
  Activations& output = outputs_[direction][op.microbatch][chunk_of_[op.unit]];
  std::vector<std::unique_ptr<collectives::Work>> works;
  if (contexts_[op.microbatch].samples == 0) return works;  // a pass that is skipped frees nothing, either
  sent_[op.group].push_back(&output);
  CheckFlow(*options_.inventory, op, output, contexts_[op.microbatch].samples, options_.compute);
  for (const at::Tensor& tensor : output) works.push_back((*options_.groups)[op.group]->Send(tensor, /*to=*/1));
  return works;
}

void InFlightMicrobatches::EndSends() {
  for (auto& [edge, sent] : sent_) {
    for (Activations* output : std::exchange(sent, {})) output->clear();
  }
}

void InFlightMicrobatches::Forward(const Op& op) {
  if (Skips(op)) return;
  BeginChunk(op);
  Activations& flow = FlowOf(op);
  if (recomputed_[op.unit]) StateOf(op).input = flow;
  flow = Run(op, [&] { return ModuleOf(op).Forward(ContextOf(op), flow, StateOf(op).saved); });
  EndChunk(op);
}

void InFlightMicrobatches::Recompute(const Op& op) {
  if (Skips(op)) return;
  const Activations input = std::exchange(StateOf(op).input, {});
  Run(op, [&] { return ModuleOf(op).Forward(ContextOf(op), input, StateOf(op).saved); });
}

template <typename F>
void InFlightMicrobatches::GoBack(const Op& op, F&& pass) {
  if (Skips(op)) return;
  BeginChunk(op);
  // Of an empty microbatch: first what the last forward returned, whose shape its gradient has.
  Activations& flow = FlowOf(op);
  const Context context = ContextOf(op);
  flow = Run(op, [&] { return pass(context, std::exchange(StateOf(op).saved, {}), flow); });
  if (!context.input_gradient) flow.clear();
  if (Offloads(op.unit)) options_.inputs->EndUse(op.unit);
  EndChunk(op);
}

void InFlightMicrobatches::Backward(const Op& op) {
  GoBack(op, [&](const Context& context, units::Saved saved, const Activations& grads) {
    return ModuleOf(op).Backward(context, std::move(saved), grads);
  });
}

void InFlightMicrobatches::BackwardInputs(const Op& op) {
  GoBack(op, [&](const Context& context, units::Saved saved, const Activations& grads) {
    return ModuleOf(op).BackwardInputs(context, std::move(saved), grads, StateOf(op).deferred);
  });
}

void InFlightMicrobatches::BackwardWeights(const Op& op) {
  if (!Skips(op)) ModuleOf(op).BackwardWeights(std::exchange(StateOf(op).deferred, {}));
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

// What a pass makes or reads is not there yet when the ops are posted: where it is kept stands for it. What is sent is
// there.
const Activations* InFlightMicrobatches::FreedBy(const Op& pass) const {
  std::map<int32_t, std::deque<const Activations*>> sent;  // by edge
  for (const Op& op : options_.schedule->ops) {
    const EdgeUse edge = Traits(op.kind).edge;
    const bool moves = edge == EdgeUse::kSendActivation || edge == EdgeUse::kSendGradient;
    if (moves && contexts_[op.microbatch].samples > 0) {
      sent[op.group].push_back(&outputs_[edge == EdgeUse::kSendActivation ? 0 : 1][op.microbatch][chunk_of_[op.unit]]);
    }
    const bool forward = Traits(op.kind).pass == Pass::kForward;
    const bool sends = (forward || GoesBack(op.kind)) && Sends(op) && !Skips(op);
    const Activations* freed = nullptr;
    if (const ChunkEdges* const edges = sends ? EdgesOf(op) : nullptr; edges != nullptr) {
      std::deque<const Activations*>& before = sent[forward ? edges->send : edges->send_gradient];
      if (before.size() >= kOutputsInFlight) freed = before.front(), before.pop_front();
    }
    if (&op == &pass) return freed;
  }
  return nullptr;
}

std::vector<Access> InFlightMicrobatches::EdgeAccesses(const Op& op) const {
  std::vector<Access> accesses;
  const ChunkEdges* edges = Traits(op.kind).scope == OpScope::kMicrobatch ? EdgesOf(op) : nullptr;
  if (edges == nullptr) return accesses;
  const int32_t chunk = chunk_of_[op.unit];
  const ChunkSpan& span = chunks_[chunk];
  const auto kept = [](const Activations& where, bool write) {
    const auto begin = reinterpret_cast<uintptr_t>(&where);
    return Access{begin, begin + sizeof(Activations), write};
  };
  const auto of = [&](const auto& by_direction, int direction) -> const Activations& {
    return by_direction[direction][op.microbatch][chunk];
  };
  const auto sends = [&](const Activations& output) {
    accesses.push_back(kept(output, false));
    for (const at::Tensor& tensor : output) {
      if (tensor.defined() && options_.received->Owns(tensor)) accesses.push_back(Reads(tensor));
    }
    return accesses;
  };
  switch (Traits(op.kind).edge) {
    case EdgeUse::kSendActivation:
      return sends(of(outputs_, 0));
    case EdgeUse::kSendGradient:
      return sends(of(outputs_, 1));
    case EdgeUse::kReceiveActivation:
      return {kept(of(received_, 0), true), Writes(options_.received->SlotOf(op))};
    case EdgeUse::kReceiveGradient:
      return {kept(of(received_, 1), true), Writes(options_.received->SlotOf(op))};
    default:
      break;
  }
  const Pass pass = Traits(op.kind).pass;
  const bool first = op.unit == span.begin, last = op.unit == span.end - 1, back = GoesBack(op.kind);
  // The first unit reads the slot of what its chunk receives until it goes back; a gradient may be handed from unit to
  // unit in its slot.
  const auto reads_slot = [&](OpKind kind) {
    for (const Op& receive : options_.schedule->ops) {
      if (receive.kind != kind || receive.microbatch != op.microbatch || chunk_of_[receive.unit] != chunk) continue;
      accesses.push_back(Reads(options_.received->SlotOf(receive)));
    }
  };
  if (first && pass != Pass::kNone && pass != Pass::kBackwardWeights) reads_slot(OpKind::kReceiveActivation);
  if (back) reads_slot(OpKind::kReceiveGradient);
  if (const Activations* freed = FreedBy(op); freed != nullptr) accesses.push_back(kept(*freed, true));
  if (first && edges->receive >= 0 && pass != Pass::kNone && pass != Pass::kBackwardWeights)
    accesses.push_back(kept(of(received_, 0), false));
  if (last && edges->receive_gradient >= 0 && back) accesses.push_back(kept(of(received_, 1), true));
  if (last && edges->send >= 0 && pass == Pass::kForward) accesses.push_back(kept(of(outputs_, 0), true));
  if (first && edges->send_gradient >= 0 && back) accesses.push_back(kept(of(outputs_, 1), true));
  return accesses;
}

std::vector<Access> InFlightMicrobatches::Accesses(const Op& op) const {
  std::vector<Access> accesses = EdgeAccesses(op);
  const OpTraits& traits = Traits(op.kind);
  const bool forward = traits.pass == Pass::kForward;
  if (forward && Offloads(op.unit + 1)) accesses.push_back(InputOf(op.unit + 1, op.microbatch, /*write=*/true));
  if (traits.scope != OpScope::kMicrobatch || !Offloads(op.unit)) return accesses;
  if (forward) accesses.push_back(InputOf(op.unit, op.microbatch, /*write=*/false));
  if (traits.pass == Pass::kRecompute) accesses.push_back(Reads(options_.inputs->DeviceSlot(op.unit)));
  if (GoesBack(op.kind)) accesses.push_back(Writes(options_.inputs->DeviceSlot(op.unit)));
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
