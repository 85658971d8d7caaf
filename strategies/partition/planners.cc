#include "strategies/partition/planners.h"

#include "models/inventory.h"
#include "strategies/partition/flat.h"

namespace muster::partition {

PartitionTable Replicated(const Inventory& inventory) {
  PartitionTable table;
  table.set_shards(1);
  for (const Unit& unit : inventory.units()) {
    UnitPartition& part = *table.add_units();
    part.set_unit(unit.name());
    for (const FlatTensor& tensor : Flatten(unit).tensors) {
      Piece& piece = *part.add_pieces();
      piece.set_tensor(tensor.name);
      Extent& extent = *piece.add_extents();
      extent.set_shard(0);
      extent.set_length(tensor.elements);
    }
  }
  return table;
}

PartitionTable Even(const Inventory& inventory, uint32_t shards) {
  PartitionTable table;
  table.set_shards(shards);
  for (const Unit& unit : inventory.units()) {
    UnitPartition& part = *table.add_units();
    part.set_unit(unit.name());
    const uint64_t blocks = Flatten(unit).elements / kAlignElements;
    const uint64_t share = (blocks + shards - 1) / shards * kAlignElements;
    for (uint32_t s = 0; s <= shards; ++s) part.add_boundaries(s * share);
  }
  return table;
}

}  // namespace muster::partition
