#include "strategies/schedule/memory.h"

#include <algorithm>
#include <deque>
#include <map>

#include "models/inventory.h"
#include "strategies/schedule/chunks.h"

namespace muster {
namespace {

// The largest of what is put into each slot of `pool`.
std::vector<uint64_t> Slots(const Schedule& schedule, SlotPool pool, int32_t slots,
                            const std::vector<uint64_t>& unit_elements) {
  std::vector<uint64_t> elements(slots);
  for (const Op& op : schedule.ops) {
    if (Traits(op.kind).slots != pool || op.slot < 0) continue;
    uint64_t span = 0;
    for (int32_t u = op.unit; u < op.unit_end; ++u) span += unit_elements[u];
    elements[op.slot] = std::max(elements[op.slot], span);
  }
  return elements;
}

class Walk {
 public:
  Walk(const Schedule& schedule, const Inventory& inventory, uint64_t sequences)
      : inventory_(inventory),
        input_bytes_(InputBytes(inventory)),
        edges_(static_cast<size_t>(inventory.units_size())),
        sequences_(sequences),
        microbatches_(static_cast<size_t>(std::max(1, schedule.microbatches))),
        backwards_(microbatches_ * static_cast<size_t>(inventory.units_size())),
        recomputed_(backwards_.size()),
        offloaded_(backwards_.size()) {
    const std::vector<ChunkSpan> chunks = ChunksOf(inventory);
    for (size_t c = 0; c < schedule.edges.size(); ++c) {
      UnitEdges &first = edges_[chunks[c].begin], &last = edges_[chunks[c].end - 1];
      first.receives = schedule.edges[c].receive >= 0, first.sends_gradient = schedule.edges[c].send_gradient >= 0;
      // To another chunk of this stage, which may come by later.
      first.takes = !first.receives && !chunks[c].first,
      last.hands_over = schedule.edges[c].send < 0 && !chunks[c].last;
      first.sends_gradient_to = schedule.edges[c].send_gradient, last.sends_to = schedule.edges[c].send;
      last.sends = schedule.edges[c].send >= 0, last.receives_gradient = schedule.edges[c].receive_gradient >= 0;
    }
    for (const Op& op : schedule.ops) {
      if (GoesBack(op.kind)) backwards_[At(op)] = true;
      if (Traits(op.kind).pass == Pass::kRecompute) recomputed_[At(op)] = true;
      if (Traits(op.kind).inputs == InputUse::kOffload) offloaded_[At(op)] = true;
    }
  }

  // While the op runs.
  uint64_t Run(const Op& op) {
    if (op.unit < 0 || op.unit >= inventory_.units_size()) return kept_;
    const Unit& unit = inventory_.units(op.unit);
    const UnitEdges& edges = edges_[op.unit];
    // What comes from another stage lies in a slot.
    const uint64_t handed = input_bytes_[op.unit] * sequences_, saved = unit.saved_bytes() * sequences_,
                   all = edges.receives ? saved - std::min(saved, handed) : saved,
                   input = edges.receives ? 0 : std::min(all, handed), output = unit.output_bytes() * sequences_,
                   deferred = unit.deferred_bytes() * sequences_, incoming = edges.receives_gradient ? 0 : output,
                   piece = models::PieceRows(sequences_ * models::TargetsPerSample(inventory_), unit.piece_rows()),
                   forward = unit.forward_bytes() * sequences_ + unit.forward_piece_bytes() * piece;
    const Pass pass = Traits(op.kind).pass;
    if (pass == Pass::kForward && edges.sends) EndOldest(sent_[edges.sends_to]);
    if (GoesBack(op.kind) && edges.sends_gradient) EndOldest(sent_[edges.sends_gradient_to]);
    if (pass == Pass::kForward && edges.takes) kept_ -= std::min(kept_, handed);
    if (GoesBack(op.kind) && edges.hands_over) kept_ -= std::min(kept_, output);
    const uint64_t before = kept_;
    switch (pass) {
      case Pass::kForward:
        kept_ += recomputed_[At(op)] ? input : backwards_[At(op)] ? all : 0;
        if (edges.hands_over) kept_ += output;
        return before + all + output + forward;
      case Pass::kRecompute:
        kept_ += all - input;
        // The output once more, and its gradient, which waits for the backward.
        return kept_ + 2 * output + forward;
      case Pass::kBackwardWeights:
        kept_ -= std::min(kept_, deferred);
        return before;
      case Pass::kBackward:
      case Pass::kBackwardInputs:
        kept_ -= std::min(kept_, offloaded_[At(op)] ? all - input : all);
        if (pass == Pass::kBackwardInputs) kept_ += deferred;
        if (edges.takes) kept_ += handed;
        // The incoming gradient is that of the output.
        return before + (pass == Pass::kBackwardInputs ? deferred : 0) + incoming + unit.backward_bytes() * sequences_ +
               unit.backward_piece_bytes() * piece + unit.backward_constant_bytes();
      case Pass::kNone:
        if (Traits(op.kind).inputs == InputUse::kRelease) kept_ -= std::min(kept_, input);
        if (Traits(op.kind).edge == EdgeUse::kSendActivation) Send(sent_[op.group], output);
        if (Traits(op.kind).edge == EdgeUse::kSendGradient) Send(sent_[op.group], handed);
        return std::max(before, kept_);
    }
    return kept_;
  }

 private:
  size_t At(const Op& op) const {
    return static_cast<size_t>(op.unit) * microbatches_ + static_cast<size_t>(op.microbatch);
  }

  struct UnitEdges {
    bool takes = false, hands_over = false;
    int32_t sends_to = -1, sends_gradient_to = -1;  // edges
    bool receives = false, sends = false, receives_gradient = false, sends_gradient = false;
  };
  // What is sent is kept until the pass that waits for it (build.h).
  void Send(std::deque<uint64_t>& sent, uint64_t bytes) {
    sent.push_back(bytes);
    kept_ += bytes;
  }
  void EndOldest(std::deque<uint64_t>& sent) {
    if (sent.size() < kOutputsInFlight) return;
    kept_ -= std::min(kept_, sent.front());
    sent.pop_front();
  }

  const Inventory& inventory_;
  const std::vector<uint64_t> input_bytes_;       // by unit
  std::vector<UnitEdges> edges_;                  // by unit
  std::map<int32_t, std::deque<uint64_t>> sent_;  // by edge
  const uint64_t sequences_;
  const size_t microbatches_;
  std::vector<bool> backwards_, recomputed_, offloaded_;  // by unit and microbatch
  uint64_t kept_ = 0;
};

}  // namespace

std::vector<uint64_t> ActivationBytes(const Schedule& schedule, const Inventory& inventory, uint64_t sequences) {
  Walk walk(schedule, inventory, sequences);
  std::vector<uint64_t> bytes;
  bytes.reserve(schedule.ops.size());
  for (const Op& op : schedule.ops) bytes.push_back(walk.Run(op));
  return bytes;
}

uint64_t PeakActivationBytes(const Schedule& schedule, const Inventory& inventory, uint64_t sequences) {
  Walk walk(schedule, inventory, sequences);
  uint64_t peak = 0;
  for (const Op& op : schedule.ops) peak = std::max(peak, walk.Run(op));
  return peak;
}

std::vector<uint64_t> GatherSlots(const Schedule& schedule, const std::vector<uint64_t>& unit_elements) {
  return Slots(schedule, SlotPool::kParameters, schedule.slots, unit_elements);
}

std::vector<uint64_t> GradientSlots(const Schedule& schedule, const std::vector<uint64_t>& unit_elements) {
  return Slots(schedule, SlotPool::kGradients, schedule.gradient_slots, unit_elements);
}

std::vector<uint64_t> InputSlots(const Schedule& schedule, SlotPool pool, const Inventory& inventory,
                                 uint64_t sequences) {
  const std::vector<uint64_t> inputs = InputBytes(inventory);
  std::vector<uint64_t> bytes(pool == SlotPool::kInputs ? schedule.input_slots : schedule.host_input_slots);
  for (const Op& op : schedule.ops) {
    if (Traits(op.kind).slots != pool || op.slot < 0) continue;
    bytes[op.slot] = std::max(bytes[op.slot], inputs[op.unit] * sequences);
  }
  return bytes;
}

std::vector<uint64_t> ActivationSlots(const Schedule& schedule, const Inventory& inventory, uint64_t sequences) {
  const std::vector<uint64_t> inputs = InputBytes(inventory);
  std::vector<uint64_t> bytes(static_cast<size_t>(schedule.activation_slots));
  for (const Op& op : schedule.ops) {
    if (Traits(op.kind).slots != SlotPool::kActivations || op.slot < 0) continue;
    const bool gradient = Traits(op.kind).edge == EdgeUse::kReceiveGradient;
    const uint64_t of = gradient ? inventory.units(op.unit).output_bytes() : inputs[op.unit];
    bytes[op.slot] = std::max(bytes[op.slot], of * sequences);
  }
  return bytes;
}

}  // namespace muster
