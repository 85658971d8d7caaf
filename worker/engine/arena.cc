#include "worker/engine/arena.h"

#include "strategies/partition/flat.h"

namespace muster::engine {

ArenaLayout LayOut(const Inventory& inventory) {
  ArenaLayout layout;
  for (const Unit& unit : inventory.units()) {
    layout.units.push_back(layout.elements);
    std::map<std::string, const Tensor*> tensors;
    for (const Tensor& tensor : unit.tensors()) tensors[tensor.name()] = &tensor;
    const partition::FlatUnit flat = partition::Flatten(unit);
    for (size_t i = 0; i < flat.tensors.size(); ++i) {
      const partition::FlatTensor& t = flat.tensors[i];
      const int64_t begin = layout.elements + static_cast<int64_t>(t.begin);
      const Tensor* tensor = tensors.at(t.name);
      layout.places[t.name] = {
          begin, static_cast<int64_t>(t.elements), {tensor->shape().begin(), tensor->shape().end()}, tensor};
      if (t.frozen) continue;
      const uint64_t next = i + 1 < flat.tensors.size() ? flat.tensors[i + 1].begin : flat.elements;
      const int64_t length = static_cast<int64_t>(next - t.begin);
      std::vector<Run>& runs = layout.runs;
      if (!runs.empty() && runs.back().decay == t.decay && runs.back().begin + runs.back().length == begin) {
        runs.back().length += length;
      } else {
        runs.push_back({begin, length, t.decay});
      }
    }
    layout.elements += static_cast<int64_t>(flat.elements);
  }
  layout.units.push_back(layout.elements);
  return layout;
}

}  // namespace muster::engine
