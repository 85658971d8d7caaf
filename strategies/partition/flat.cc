#include "strategies/partition/flat.h"

#include <algorithm>
#include <numeric>

#include "models/inventory.h"

namespace muster::partition {

std::vector<int> FlatOrder(const Unit& unit) {
  std::vector<int> order(static_cast<size_t>(unit.tensors_size()));
  std::iota(order.begin(), order.end(), 0);
  // Grouped by how the optimizer treats them, so that it works on a few long runs.
  const auto group = [&](int t) { return unit.tensors(t).frozen() ? 2 : unit.tensors(t).decay() ? 0 : 1; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return group(a) < group(b); });
  return order;
}

FlatUnit Flatten(const Unit& unit) { return Flatten(unit, FlatOrder(unit)); }

FlatUnit Flatten(const Unit& unit, const std::vector<int>& order) {
  FlatUnit flat;
  for (const int t : order) {
    const Tensor& tensor = unit.tensors(t);
    const uint64_t elements = models::Elements(tensor);
    flat.tensors.push_back({tensor.name(), flat.elements, elements, tensor.decay(), tensor.frozen()});
    flat.elements += Padded(elements);
  }
  return flat;
}

uint64_t TrainedElements(const Unit& unit) {
  uint64_t n = 0;
  for (const Tensor& tensor : unit.tensors()) {
    if (!tensor.frozen()) n += Padded(models::Elements(tensor));
  }
  return n;
}

uint64_t FlatElements(const Inventory& inventory) {
  uint64_t n = 0;
  for (const Unit& unit : inventory.units()) n += Flatten(unit).elements;
  return n;
}

}  // namespace muster::partition
