#include "worker/engine/received.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "strategies/schedule/chunks.h"
#include "worker/engine/failed.h"
#include "worker/units/activations.h"

namespace muster::engine {
namespace {

constexpr int64_t kAlignBytes = 64;

int64_t Elements(const Activation& activation) {
  int64_t elements = 1;
  for (const uint64_t size : activation.shape()) elements *= static_cast<int64_t>(size);
  return elements;
}

// In a slot.
int64_t BytesOf(const Activation& activation, int64_t samples, at::ScalarType compute) {
  const int64_t bytes =
      samples * Elements(activation) * static_cast<int64_t>(c10::elementSize(units::TypeOf(activation, compute)));
  return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
}

}  // namespace

const google::protobuf::RepeatedPtrField<Activation>& FlowOf(const Inventory& inventory, const Op& op) {
  const EdgeUse edge = Traits(op.kind).edge;
  if (edge == EdgeUse::kSendActivation || edge == EdgeUse::kReceiveGradient) return inventory.units(op.unit).outputs();
  return inventory.chunks(ChunkByUnit(inventory)[op.unit]).inputs();
}

ReceivedActivations::ReceivedActivations(const Options& options) : options_(options) {
  std::vector<int64_t> bytes;
  for (const Schedule* schedule : {options.schedule, options.evaluation}) {
    bytes.resize(std::max(bytes.size(), static_cast<size_t>(schedule->activation_slots)));
    for (const Op& op : schedule->ops) {
      if (Traits(op.kind).slots != SlotPool::kActivations) continue;
      int64_t of = 0;
      for (const Activation& activation : FlowOf(*options.inventory, op)) {
        of += BytesOf(activation, options.samples, options.compute);
      }
      bytes[static_cast<size_t>(op.slot)] = std::max(bytes[static_cast<size_t>(op.slot)], of);
    }
  }
  for (const int64_t size : bytes) {
    slots_.push_back(at::empty({size}, at::TensorOptions(at::kByte).device(options.device)));
  }
}

units::Activations ReceivedActivations::TensorsOf(const Op& op, int64_t samples) const {
  units::Activations tensors;
  int64_t begin = 0;
  for (const Activation& activation : FlowOf(*options_.inventory, op)) {
    const at::ScalarType type = units::TypeOf(activation, options_.compute);
    const int64_t size = samples * Elements(activation) * static_cast<int64_t>(c10::elementSize(type));
    tensors.push_back(SlotOf(op).narrow(0, begin, size).view(type).view(units::ShapeOf(activation, samples)));
    begin += BytesOf(activation, samples, options_.compute);
  }
  return tensors;
}

bool ReceivedActivations::Owns(const at::Tensor& tensor) const {
  return std::any_of(slots_.begin(), slots_.end(), [&](const at::Tensor& slot) { return slot.is_alias_of(tensor); });
}

void CheckFlow(const Inventory& inventory, const Op& op, const units::Activations& tensors, int64_t samples,
               at::ScalarType compute) {
  Unit unit;
  unit.set_name(inventory.units(op.unit).name());
  *unit.mutable_outputs() = FlowOf(inventory, op);
  ThrowIfBad(units::CheckActivations(unit, samples, compute, tensors));
}

}  // namespace muster::engine
