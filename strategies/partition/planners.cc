#include "strategies/partition/planners.h"

#include <algorithm>

#include "models/inventory.h"
#include "strategies/partition/cuts.h"
#include "strategies/partition/flat.h"
#include "strategies/partition/table.h"
#include "strategies/schedule/mesh.h"

namespace muster::partition {
namespace {

void AddExtent(Piece& piece, uint32_t shard, uint64_t begin, uint64_t length) {
  Extent& extent = *piece.add_extents();
  extent.set_shard(shard);
  extent.set_begin(begin);
  extent.set_length(length);
}

}  // namespace

PartitionTable Replicated(const Inventory& inventory) {
  PartitionTable table;
  table.set_shards(1);
  for (const Unit& unit : inventory.units()) {
    UnitPartition& part = *table.add_units();
    part.set_unit(unit.name());
    for (const FlatTensor& tensor : Flatten(unit).tensors) {
      Piece& piece = *part.add_pieces();
      piece.set_tensor(tensor.name);
      AddExtent(piece, 0, 0, tensor.elements);
    }
  }
  return table;
}

namespace {

// A unit that is frozen in part: what is trained and what is frozen are cut equally each, so that gradients and
// optimizer state are divided as well as parameters.
void CutInTwo(const Unit& unit, uint32_t shards, UnitPartition& part) {
  const std::vector<int> order = FlatOrder(unit);
  const auto frozen = std::find_if(order.begin(), order.end(), [&](int t) { return unit.tensors(t).frozen(); });
  const auto cut = [&](auto first, auto end) {
    uint64_t all = 0;
    for (auto t = first; t != end; ++t) all += PaddedElements(unit.tensors(*t));
    const uint64_t share = (all / kAlignElements + shards - 1) / shards * kAlignElements;
    uint64_t before = 0;  // elements of the tensors before this one
    for (auto t = first; t != end; ++t) {
      const Tensor& tensor = unit.tensors(*t);
      Piece& piece = *part.add_pieces();
      piece.set_tensor(tensor.name());
      const uint64_t elements = models::Elements(tensor);
      for (uint64_t begin = 0; begin < elements;) {
        const uint64_t shard = (before + begin) / share, next = std::min((shard + 1) * share - before, elements);
        AddExtent(piece, static_cast<uint32_t>(shard), begin, next - begin);
        begin = next;
      }
      before += PaddedElements(tensor);
    }
  };
  cut(order.begin(), frozen);
  cut(frozen, order.end());
}

}  // namespace

PartitionTable Even(const Inventory& inventory, uint32_t shards, size_t most_bytes) {
  SizeLimit limit(most_bytes);
  PartitionTable table;
  table.set_shards(shards);
  for (const Unit& unit : inventory.units()) {
    UnitPartition& part = *table.add_units();
    part.set_unit(unit.name());
    if (IsFrozenInPart(unit)) {
      CutInTwo(unit, shards, part);
      if (limit.Exceeded(table)) break;
      continue;
    }
    const uint64_t blocks = Flatten(unit).elements / kAlignElements;
    const uint64_t share = (blocks + shards - 1) / shards * kAlignElements;
    part.mutable_boundaries()->Reserve(static_cast<int>(shards) + 1);
    for (uint32_t s = 0; s <= shards; ++s) part.add_boundaries(s * share);
    if (limit.Exceeded(table)) break;
  }
  return table;
}

PartitionTable Rows(const Inventory& inventory, uint32_t shards, size_t most_bytes) {
  SizeLimit limit(most_bytes);
  PartitionTable table;
  table.set_shards(shards);
  uint32_t next_whole = 0;  // tensors without rows are dealt out in turn
  for (const Unit& unit : inventory.units()) {
    UnitPartition& part = *table.add_units();
    part.set_unit(unit.name());
    for (const int t : FlatOrder(unit)) {
      const Tensor& tensor = unit.tensors(t);
      Piece& piece = *part.add_pieces();
      piece.set_tensor(tensor.name());
      const uint64_t elements = models::Elements(tensor);
      if (tensor.atom() == ATOM_WHOLE || tensor.shape_size() == 0) {
        AddExtent(piece, next_whole++ % shards, 0, elements);
        continue;
      }
      const uint64_t rows = tensor.shape(0);
      const uint64_t each = (rows + shards - 1) / shards * (elements / rows);
      uint64_t begin = 0;
      for (uint32_t s = 0; begin < elements; ++s, begin += each) {
        AddExtent(piece, s, begin, std::min(each, elements - begin));
      }
    }
    if (limit.Exceeded(table)) break;
  }
  return table;
}

namespace {

// Of ranks that hold copies of so many shards each.
Mesh InCopies(absl::Span<const RankPlace> ranks, uint32_t shards) {
  return WithReplicasFor({.shard = shards}, static_cast<uint32_t>(ranks.size()));
}

std::vector<uint64_t> ByMemory(absl::Span<const RankPlace> ranks, uint32_t shards) {
  const Mesh mesh = InCopies(ranks, shards);
  std::vector<uint64_t> weights(shards, 1);
  if (std::any_of(ranks.begin(), ranks.end(), [](const RankPlace& r) { return r.memory_bytes == 0; })) return weights;
  for (uint32_t r = 0; r < ranks.size(); ++r) {
    const Coordinate at = CoordinateOf(mesh, r);
    uint64_t& weight = weights[at.shard];
    weight = at.replica == 0 ? ranks[r].memory_bytes : std::min(weight, ranks[r].memory_bytes);
  }
  return weights;
}

// In FLOP/s; all 1 if none is known.
std::vector<double> BySpeed(absl::Span<const RankPlace> ranks, uint32_t shards) {
  const Mesh mesh = InCopies(ranks, shards);
  double sum = 0, known = 0;
  for (const RankPlace& rank : ranks) {
    sum += rank.flops_per_second;
    known += rank.flops_per_second > 0 ? 1 : 0;
  }
  std::vector<double> weights(shards, 1);
  for (uint32_t r = 0; r < ranks.size() && known > 0; ++r) {
    const double speed = ranks[r].flops_per_second > 0 ? ranks[r].flops_per_second : sum / known;
    const Coordinate at = CoordinateOf(mesh, r);
    double& weight = weights[at.shard];
    weight = at.replica == 0 ? speed : std::min(weight, speed);
  }
  return weights;
}

// Elements that a shard may own, by shard; 0: no bound.
std::vector<uint64_t> Bounds(absl::Span<const RankPlace> ranks, uint32_t shards) {
  const Mesh mesh = InCopies(ranks, shards);
  std::vector<uint64_t> bounds(shards);
  for (uint32_t r = 0; r < ranks.size(); ++r) {
    uint64_t& bound = bounds[CoordinateOf(mesh, r).shard];
    const uint64_t most = ranks[r].most_elements;
    if (most > 0 && (bound == 0 || most < bound)) bound = most;
  }
  return bounds;
}

// Each pass removes at least one shard whose share exceeds its bound.
std::vector<uint64_t> Bounded(const std::vector<double>& weights, const std::vector<uint64_t>& bounds,
                              uint64_t elements) {
  std::vector<uint64_t> shares(weights.size());
  std::vector<bool> full(weights.size());
  double left = static_cast<double>(elements);
  for (bool changed = true; changed;) {
    changed = false;
    double sum = 0;
    for (size_t s = 0; s < weights.size(); ++s) sum += full[s] ? 0 : weights[s];
    double taken = 0;
    for (size_t s = 0; s < weights.size(); ++s) {
      if (full[s]) continue;
      const double share = left * weights[s] / sum;
      shares[s] = std::max<uint64_t>(1, static_cast<uint64_t>(share));
      if (bounds[s] == 0 || share <= static_cast<double>(bounds[s])) continue;
      shares[s] = bounds[s];
      full[s] = changed = true;
      taken += static_cast<double>(bounds[s]);
    }
    left -= taken;
  }
  return shares;
}

}  // namespace

std::vector<uint64_t> Weights(absl::Span<const RankPlace> ranks, uint32_t shards, Shares by, uint64_t elements) {
  if (by != SHARES_SPEED) return ByMemory(ranks, shards);
  return Bounded(BySpeed(ranks, shards), Bounds(ranks, shards), elements);
}

PartitionTable Place(Placement placement, bool in_runs, const Inventory& inventory, uint32_t shards,
                     absl::Span<const RankPlace> ranks, Shares by, size_t most_bytes) {
  switch (placement) {
    case PLACEMENT_ROWS:
      return Rows(inventory, shards, most_bytes);
    case PLACEMENT_WHOLE:
      return in_runs ? WholeTensorsInRuns(inventory, shards, most_bytes) : WholeTensors(inventory, shards, most_bytes);
    case PLACEMENT_RAGGED: {
      const std::vector<uint64_t> weights = Weights(ranks, shards, by, FlatElements(inventory));
      return in_runs ? RaggedInRuns(inventory, weights, most_bytes) : Ragged(inventory, weights, most_bytes);
    }
    default:
      return Even(inventory, shards, most_bytes);
  }
}

}  // namespace muster::partition
