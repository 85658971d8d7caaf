#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <utility>

#include "strategies/partition/cuts.h"
#include "strategies/partition/flat.h"
#include "strategies/partition/planners.h"

namespace muster::partition {
namespace {

// The number of parts that a greedy walk makes of `sizes` if none may exceed `most`.
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

// The smallest possible largest part, over all cuts of `sizes`, in order, into this many parts.
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

// The largest first, each to the shard that has least: by size, how many tensors each shard gets.
std::map<uint64_t, std::vector<uint64_t>> ShareOut(const Inventory& inventory, uint32_t shards) {
  std::map<uint64_t, uint64_t, std::greater<>> sizes;  // and their count
  for (const Unit& unit : inventory.units()) {
    for (const Tensor& tensor : unit.tensors()) ++sizes[PaddedElements(tensor)];
  }
  using Load = std::pair<uint64_t, uint32_t>;  // elements, shard
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (uint32_t s = 0; s < shards; ++s) loads.push({0, s});
  std::map<uint64_t, std::vector<uint64_t>> quotas;
  for (const auto& [size, count] : sizes) {
    std::vector<uint64_t>& quota = quotas[size];
    quota.resize(shards);
    for (uint64_t i = 0; i < count; ++i) {
      const auto [load, shard] = loads.top();
      loads.pop();
      loads.push({load + size, shard});
      ++quota[shard];
    }
  }
  return quotas;
}

// Which tensors of one size a shard gets does not change its bytes, so each unit's tensors are spread: a shard gets its
// tensors of a size at an even pace through the model, preferably where it owns little of the unit.
class Spread {
 public:
  Spread(const Inventory& inventory, uint32_t shards) : shards_(shards) {
    for (auto& [size, quota] : ShareOut(inventory, shards)) {
      OfSize& of_size = sizes_[size];
      of_size.count = std::accumulate(quota.begin(), quota.end(), uint64_t{0});
      of_size.quota = std::move(quota);
      of_size.given.resize(shards);
    }
  }

  // By tensor. REQUIRES: called once per unit.
  std::vector<uint32_t> Owners(const Unit& unit) {
    std::vector<int> order(static_cast<size_t>(unit.tensors_size()));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return PaddedElements(unit.tensors(a)) > PaddedElements(unit.tensors(b)); });
    std::vector<uint32_t> owners(order.size());
    std::vector<uint64_t> of_unit(shards_);
    for (const int t : order) {
      const uint64_t size = PaddedElements(unit.tensors(t));
      owners[t] = Next(size, of_unit);
      of_unit[owners[t]] += size;
    }
    return owners;
  }

 private:
  // A larger quota would let a shard's tensors pile up in the last units.
  static constexpr double kUnitWeight = 0.5;

  struct OfSize {
    uint64_t count = 0;
    uint64_t done = 0;
    std::vector<uint64_t> quota;  // by shard
    std::vector<uint64_t> given;
  };

  uint32_t Next(uint64_t size, const std::vector<uint64_t>& of_unit) {
    OfSize& of_size = sizes_.at(size);
    ++of_size.done;
    uint32_t best = shards_;
    double best_lag = 0;
    for (uint32_t s = 0; s < shards_; ++s) {
      if (of_size.given[s] == of_size.quota[s]) continue;
      const double due = static_cast<double>(of_size.quota[s] * of_size.done) / static_cast<double>(of_size.count);
      const double lag = (due - static_cast<double>(of_size.given[s])) * static_cast<double>(size) -
                         kUnitWeight * static_cast<double>(of_unit[s]);
      if (best < shards_ && lag <= best_lag) continue;
      best = s;
      best_lag = lag;
    }
    ++of_size.given[best];
    return best;
  }

  uint32_t shards_;
  std::map<uint64_t, OfSize> sizes_;
};

}  // namespace

PartitionTable WholeTensors(const Inventory& inventory, uint32_t shards, size_t most_bytes) {
  SizeLimit limit(most_bytes);
  PartitionTable table;
  table.set_shards(shards);
  Spread spread(inventory, shards);
  for (const Unit& unit : inventory.units()) {
    const std::vector<uint32_t> owner = spread.Owners(unit);
    std::vector<int> order = FlatOrder(unit);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return owner[a] < owner[b]; });
    std::vector<uint64_t> boundaries(shards + 1);
    for (const int t : order) boundaries[owner[t] + 1] += PaddedElements(unit.tensors(t));
    std::partial_sum(boundaries.begin(), boundaries.end(), boundaries.begin());
    AddUnit(table, unit, order, boundaries);
    if (limit.Exceeded(table)) break;
  }
  return table;
}

PartitionTable WholeTensorsInRuns(const Inventory& inventory, uint32_t shards, size_t most_bytes) {
  std::vector<uint64_t> sizes;
  for (const Unit& unit : inventory.units()) {
    for (const int t : FlatOrder(unit)) sizes.push_back(PaddedElements(unit.tensors(t)));
  }
  const uint64_t most = SmallestLargest(sizes, shards);
  std::vector<uint64_t> cuts{0};
  uint64_t at = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    // No shard is empty as long as there is a tensor for each.
    const bool one_each = sizes.size() - i <= shards - cuts.size();
    if (at > cuts.back() && (at + sizes[i] - cuts.back() > most || one_each)) cuts.push_back(at);
    at += sizes[i];
  }
  cuts.resize(shards + 1, at);
  return CutInRuns(inventory, cuts, most_bytes);
}

}  // namespace muster::partition
