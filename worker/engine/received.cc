#include "worker/engine/received.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "strategies/schedule/chunks.h"
#include "worker/engine/failed.h"

namespace muster::engine {
namespace {

constexpr int64_t kAlignBytes = 64;

int64_t Elements(const Activation& activation) {
  int64_t elements = 1;
  for (const uint64_t size : activation.shape()) elements *= static_cast<int64_t>(size);
  return elements;
}

at::ScalarType TypeOf(const Activation& activation, at::ScalarType compute) {
  return activation.type() == Activation::COMPUTE ? compute : at::kFloat;
}

// In a slot.
int64_t BytesOf(const Activation& activation, int64_t samples, at::ScalarType compute) {
  const int64_t bytes =
      samples * Elements(activation) * static_cast<int64_t>(c10::elementSize(TypeOf(activation, compute)));
  return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
}

std::vector<int64_t> ShapeOf(const Activation& activation, int64_t samples) {
  std::vector<int64_t> shape = {samples};
  shape.insert(shape.end(), activation.shape().begin(), activation.shape().end());
  return shape;
}

}  // namespace

const google::protobuf::RepeatedPtrField<Activation>& FlowOf(const Inventory& inventory, const Op& op) {
  const EdgeUse edge = Traits(op.kind).edge;
  if (edge == EdgeUse::kSendActivation || edge == EdgeUse::kReceiveGradient) return inventory.units(op.unit).outputs();
  return inventory.chunks(ChunkByUnit(inventory)[op.unit]).inputs();
}

ReceivedActivations::ReceivedActivations(const Options& options) : options_(options) {
  std::vector<int64_t> bytes(static_cast<size_t>(options.schedule->activation_slots));
  for (const Op& op : options.schedule->ops) {
    if (Traits(op.kind).slots != SlotPool::kActivations) continue;
    int64_t of = 0;
    for (const Activation& activation : FlowOf(*options.inventory, op)) {
      of += BytesOf(activation, options.samples, options.compute);
    }
    bytes[static_cast<size_t>(op.slot)] = std::max(bytes[static_cast<size_t>(op.slot)], of);
  }
  for (const int64_t size : bytes) {
    slots_.push_back(at::empty({size}, at::TensorOptions(at::kByte).device(options.device)));
  }
}

units::Activations ReceivedActivations::TensorsOf(const Op& op, int64_t samples) const {
  units::Activations tensors;
  int64_t begin = 0;
  for (const Activation& activation : FlowOf(*options_.inventory, op)) {
    const at::ScalarType type = TypeOf(activation, options_.compute);
    const int64_t size = samples * Elements(activation) * static_cast<int64_t>(c10::elementSize(type));
    tensors.push_back(SlotOf(op).narrow(0, begin, size).view(type).view(ShapeOf(activation, samples)));
    begin += BytesOf(activation, samples, options_.compute);
  }
  return tensors;
}

bool ReceivedActivations::Owns(const at::Tensor& tensor) const {
  return std::any_of(slots_.begin(), slots_.end(), [&](const at::Tensor& slot) { return slot.is_alias_of(tensor); });
}

void CheckFlow(const Inventory& inventory, const Op& op, const units::Activations& tensors, at::ScalarType compute) {
  const auto& declared = FlowOf(inventory, op);
  bool same = static_cast<size_t>(declared.size()) == tensors.size();
  for (size_t i = 0; same && i < tensors.size(); ++i) {
    const Activation& activation = declared[static_cast<int>(i)];
    same = tensors[i].scalar_type() == TypeOf(activation, compute) &&
           tensors[i].sizes().equals(ShapeOf(activation, tensors[i].size(0)));
  }
  if (same) return;
  throw Failed(absl::InternalError(
      absl::StrCat(inventory.units(op.unit).name(), " computed other tensors than the inventory says that it hands on")));
}

}  // namespace muster::engine
