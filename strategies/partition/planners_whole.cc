#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "strategies/partition/cuts.h"
#include "strategies/partition/flat.h"
#include "strategies/partition/planners.h"

namespace muster::partition {
namespace {

// Parts that a greedy walk makes of `sizes` when none may exceed `most`.
uint64_t PartsWithin(const std::vector<uint64_t>& sizes, uint64_t most) {
  uint64_t parts = 1, filled = 0;
  for (const uint64_t size : sizes) {
    if (filled > 0 && filled + size > most) {
      ++parts;
      filled = 0;
    }
    filled += size;
  }
  return parts;
}

// The smallest largest part of any cut of `sizes`, in their order, into so many parts.
uint64_t SmallestLargest(const std::vector<uint64_t>& sizes, uint32_t parts) {
  uint64_t low = 0, high = 0;
  for (const uint64_t size : sizes) {
    low = std::max(low, size);
    high += size;
  }
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (PartsWithin(sizes, middle) <= parts) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace

PartitionTable WholeTensors(const Inventory& inventory, uint32_t shards) {
  struct Owned {
    int unit;
    int tensor;
    uint64_t elements;
    uint32_t shard;
  };
  std::vector<Owned> tensors;
  for (int u = 0; u < inventory.units_size(); ++u) {
    for (int t = 0; t < inventory.units(u).tensors_size(); ++t) {
      tensors.push_back({u, t, PaddedElements(inventory.units(u).tensors(t)), 0});
    }
  }
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const Owned& a, const Owned& b) { return a.elements > b.elements; });
  using Load = std::pair<uint64_t, uint32_t>;  // elements, shard
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (uint32_t s = 0; s < shards; ++s) loads.push({0, s});
  std::vector<std::vector<uint32_t>> owner(static_cast<size_t>(inventory.units_size()));
  for (int u = 0; u < inventory.units_size(); ++u) owner[u].resize(inventory.units(u).tensors_size());
  for (const Owned& tensor : tensors) {
    const auto [load, shard] = loads.top();
    loads.pop();
    loads.push({load + tensor.elements, shard});
    owner[tensor.unit][tensor.tensor] = shard;
  }

  PartitionTable table;
  table.set_shards(shards);
  for (int u = 0; u < inventory.units_size(); ++u) {
    const Unit& unit = inventory.units(u);
    std::vector<int> order = FlatOrder(unit);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return owner[u][a] < owner[u][b]; });
    std::vector<uint64_t> boundaries(shards + 1);
    for (const int t : order) boundaries[owner[u][t] + 1] += PaddedElements(unit.tensors(t));
    std::partial_sum(boundaries.begin(), boundaries.end(), boundaries.begin());
    AddUnit(table, unit, order, boundaries);
  }
  return table;
}

PartitionTable WholeTensorsInRuns(const Inventory& inventory, uint32_t shards) {
  std::vector<uint64_t> sizes;
  for (const Unit& unit : inventory.units()) {
    for (const int t : FlatOrder(unit)) sizes.push_back(PaddedElements(unit.tensors(t)));
  }
  const uint64_t most = SmallestLargest(sizes, shards);
  std::vector<uint64_t> cuts{0};
  uint64_t at = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    // No shard stays empty as long as there is a tensor for each.
    const bool one_each = sizes.size() - i <= shards - cuts.size();
    if (at > cuts.back() && (at + sizes[i] - cuts.back() > most || one_each)) cuts.push_back(at);
    at += sizes[i];
  }
  cuts.resize(shards + 1, at);
  return CutInRuns(inventory, cuts);
}

}  // namespace muster::partition
