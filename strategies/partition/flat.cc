#include "strategies/partition/flat.h"

#include <algorithm>

#include "models/inventory.h"

namespace muster::partition {

FlatUnit Flatten(const Unit& unit) {
  FlatUnit flat;
  for (const Tensor& tensor : unit.tensors()) {
    flat.tensors.push_back({tensor.name(), 0, models::Elements(tensor), tensor.decay(), tensor.frozen()});
  }
  // Grouped by what the optimizer does with them, so that it works on few long runs.
  const auto group = [](const FlatTensor& t) { return t.frozen ? 2 : t.decay ? 0 : 1; };
  std::stable_sort(flat.tensors.begin(), flat.tensors.end(),
                   [&](const FlatTensor& a, const FlatTensor& b) { return group(a) < group(b); });
  for (FlatTensor& tensor : flat.tensors) {
    tensor.begin = flat.elements;
    flat.elements += (tensor.elements + kAlignElements - 1) / kAlignElements * kAlignElements;
  }
  return flat;
}

uint64_t FlatElements(const Inventory& inventory) {
  uint64_t n = 0;
  for (const Unit& unit : inventory.units()) n += Flatten(unit).elements;
  return n;
}

}  // namespace muster::partition
