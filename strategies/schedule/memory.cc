#include "strategies/schedule/memory.h"

#include <algorithm>

#include "models/inventory.h"

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

// Of a sample, as the first unit keeps it or as the unit before hands it over.
uint64_t InputBytes(const Inventory& inventory, int32_t unit) {
  return unit == 0 ? inventory.units(0).saved_bytes() : inventory.units(unit - 1).output_bytes();
}

class Walk {
 public:
  Walk(const Schedule& schedule, const Inventory& inventory, uint64_t sequences)
      : inventory_(inventory),
        sequences_(sequences),
        microbatches_(static_cast<size_t>(std::max(1, schedule.microbatches))),
        backwards_(microbatches_ * static_cast<size_t>(inventory.units_size())),
        recomputed_(backwards_.size()),
        offloaded_(backwards_.size()) {
    for (const Op& op : schedule.ops) {
      if (Traits(op.kind).pass == Pass::kBackward) backwards_[At(op)] = true;
      if (Traits(op.kind).pass == Pass::kRecompute) recomputed_[At(op)] = true;
      if (Traits(op.kind).inputs == InputUse::kOffload) offloaded_[At(op)] = true;
    }
  }

  // While the op runs.
  uint64_t Run(const Op& op) {
    if (op.unit < 0 || op.unit >= inventory_.units_size()) return kept_;
    const Unit& unit = inventory_.units(op.unit);
    const uint64_t all = unit.saved_bytes() * sequences_,
                   input = std::min(all, InputBytes(inventory_, op.unit) * sequences_),
                   output = unit.output_bytes() * sequences_,
                   piece = models::PieceRows(sequences_ * models::TargetsPerSample(inventory_), unit.piece_rows()),
                   forward = unit.forward_bytes() * sequences_ + unit.forward_piece_bytes() * piece;
    const uint64_t before = kept_;
    switch (Traits(op.kind).pass) {
      case Pass::kForward:
        kept_ += recomputed_[At(op)] ? input : backwards_[At(op)] ? all : 0;
        return before + all + output + forward;
      case Pass::kRecompute:
        kept_ += all - input;
        // The output once more, and its gradient, which waits for the backward.
        return kept_ + 2 * output + forward;
      case Pass::kBackward:
        kept_ -= std::min(kept_, offloaded_[At(op)] ? all - input : all);
        // The incoming gradient is that of the output.
        return before + output + unit.backward_bytes() * sequences_ + unit.backward_piece_bytes() * piece +
               unit.backward_constant_bytes();
      case Pass::kNone:
        if (Traits(op.kind).inputs == InputUse::kRelease) kept_ -= std::min(kept_, input);
        return before;
    }
    return kept_;
  }

 private:
  size_t At(const Op& op) const {
    return static_cast<size_t>(op.unit) * microbatches_ + static_cast<size_t>(op.microbatch);
  }

  const Inventory& inventory_;
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
  std::vector<uint64_t> bytes(pool == SlotPool::kInputs ? schedule.input_slots : schedule.host_input_slots);
  for (const Op& op : schedule.ops) {
    if (Traits(op.kind).slots != pool || op.slot < 0) continue;
    bytes[op.slot] = std::max(bytes[op.slot], InputBytes(inventory, op.unit) * sequences);
  }
  return bytes;
}

}  // namespace muster
