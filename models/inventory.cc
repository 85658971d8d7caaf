#include "models/inventory.h"

#include <algorithm>

#include "absl/status/status.h"
#include "models/gpt2.h"

namespace muster::models {

absl::StatusOr<Model> Resolve(const Model& model) {
  Model resolved = model;
  switch (model.family_case()) {
    case Model::kGpt2: {
      absl::StatusOr<Gpt2> gpt2 = ResolveGpt2(model.gpt2());
      if (!gpt2.ok()) return gpt2.status();
      *resolved.mutable_gpt2() = *std::move(gpt2);
      return resolved;
    }
    case Model::FAMILY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("family: missing; known: gpt2");
}

absl::StatusOr<Inventory> MakeInventory(const Model& model, Device device) {
  absl::StatusOr<Model> resolved = Resolve(model);
  if (!resolved.ok()) return resolved.status();
  return MakeGpt2(resolved->gpt2(), device == DEVICE_CUDA ? DEVICE_CUDA : DEVICE_CPU);
}

uint64_t Elements(const Tensor& tensor) {
  uint64_t n = 1;
  for (const uint64_t d : tensor.shape()) n *= d;
  return n;
}

uint64_t Parameters(const Inventory& inventory) {
  uint64_t n = 0;
  for (const Unit& unit : inventory.units()) {
    for (const Tensor& tensor : unit.tensors()) n += Elements(tensor);
  }
  return n;
}

uint64_t PieceRows(uint64_t rows, uint64_t most) {
  if (most == 0 || rows <= most) return rows;
  const uint64_t pieces = (rows + most - 1) / most;
  return (rows + pieces - 1) / pieces;
}

uint64_t Bf16Bytes(const Inventory& inventory) {
  if (inventory.device() == DEVICE_CUDA) return 0;
  uint64_t largest = 0;
  for (const Unit& unit : inventory.units()) {
    for (const Tensor& tensor : unit.tensors()) largest = std::max(largest, Elements(tensor));
  }
  return std::max(2 * largest, kBf16PanelBytes);
}

}  // namespace muster::models
