#include "strategies/partition/cuts.h"

#include <algorithm>
#include <numeric>

#include "models/inventory.h"
#include "strategies/partition/flat.h"

namespace muster::partition {

uint64_t PaddedElements(const Tensor& tensor) { return Padded(models::Elements(tensor)); }

uint64_t NearestCut(const Tensor& tensor, uint64_t at, uint64_t coarse) {
  const uint64_t padded = PaddedElements(tensor);
  if (at >= padded) return padded;
  const uint64_t whole = at < padded - at ? 0 : padded;
  if (tensor.atom() == ATOM_WHOLE || tensor.shape_size() == 0) return whole;
  const uint64_t elements = models::Elements(tensor);
  uint64_t step = std::lcm(elements / tensor.shape(0), kAlignElements);
  if (tensor.atom() == ATOM_ELEMENT && step > coarse) step = kAlignElements;
  const uint64_t below = at / step * step, above = std::min(below + step, padded);
  if (at - below <= above - at) return below;
  return above >= elements ? padded : above;
}

void AddUnit(PartitionTable& table, const Unit& unit, const std::vector<int>& order,
             absl::Span<const uint64_t> boundaries) {
  UnitPartition& part = *table.add_units();
  part.set_unit(unit.name());
  for (const int t : order) part.add_pieces()->set_tensor(unit.tensors(t).name());
  part.mutable_boundaries()->Reserve(static_cast<int>(boundaries.size()));
  for (const uint64_t boundary : boundaries) part.add_boundaries(boundary);
}

PartitionTable CutInRuns(const Inventory& inventory, absl::Span<const uint64_t> cuts, size_t most_bytes) {
  SizeLimit limit(most_bytes);
  PartitionTable table;
  table.set_shards(static_cast<uint32_t>(cuts.size() - 1));
  uint64_t begin = 0;
  for (const Unit& unit : inventory.units()) {
    const uint64_t end = begin + Flatten(unit).elements;
    std::vector<uint64_t> boundaries;
    for (const uint64_t cut : cuts) boundaries.push_back(std::clamp(cut, begin, end) - begin);
    AddUnit(table, unit, {}, boundaries);
    if (limit.Exceeded(table)) break;
    begin = end;
  }
  return table;
}

}  // namespace muster::partition
