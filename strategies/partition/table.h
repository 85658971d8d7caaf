// Partition tables: reading, checking, identifying. planners.h fills them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"
#include "strategies/partition/flat.h"
#include "strategies/schedule/mesh.h"

namespace muster::partition {

// Elements [begin, end) of a unit's flat buffer. Padding belongs to the owner of the element before it.
struct OwnedRange {
  uint32_t shard = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  friend bool operator==(const OwnedRange&, const OwnedRange&) = default;
};

// A unit's flat buffer in its table's order, and its owners: ascending ranges that cover it, none empty, adjacent ones
// of different shards.
struct OwnedUnit {
  FlatUnit flat;
  std::vector<OwnedRange> ranges;
};

// Of a pipeline: how many stages there are. 1 without one.
uint32_t Stages(const PartitionTable& table);
// How many ranks compute each unit together.
uint32_t TensorRanks(const PartitionTable& table);
// Of one replica: its shards are the owners.
Mesh MeshOf(const PartitionTable& table);
// A stage's and a share's part of the table, with its own shards alone, numbered from 0: one unit for each of the
// stage's units, in their order. REQUIRES: the table passed Check.
PartitionTable TableOf(const PartitionTable& table, uint32_t stage, uint32_t tensor = 0);

// Of one unit. REQUIRES: the table passed Check.
OwnedUnit OwnedUnitOf(const PartitionTable& table, const Inventory& inventory, int unit);
// Each unit of each share, in the table's order. `inventory` is the whole model's.
void EachOwnedUnit(const PartitionTable& table, const Inventory& inventory,
                   absl::FunctionRef<void(const UnitPartition&, const Unit&, const OwnedUnit&)> visit);
// Of all of them: as many ranges as there are units and shards, so where they are only summed up, one after another
// takes less memory.
std::vector<OwnedUnit> OwnedUnits(const PartitionTable& table, const Inventory& inventory);

// The part of a unit that is trained: its tensors that are not frozen alone, one after another in the same order, and
// who owns them. Gradients and optimizer state are laid out so. `unit` itself if nothing in it is frozen.
OwnedUnit TrainedPart(const OwnedUnit& unit);
bool HasFrozen(const Unit& unit);
bool IsFrozenInPart(const Unit& unit);

// Of a unit's flat buffer, the table's padding included.
uint64_t BufferElements(const PartitionTable& table, const Inventory& inventory, int unit);

// By unit: whether the table cuts it into as many equal ranges as its stage has shards, in their order. A unit that is
// frozen in part never is: its parameters or its gradients are cut otherwise.
std::vector<bool> EvenUnits(const PartitionTable& table, const Inventory& inventory);

// By shard: elements of the flat buffers that it owns, padding included; and of those, the elements that are trained.
std::vector<uint64_t> OwnedElements(const PartitionTable& table, const Inventory& inventory);
std::vector<uint64_t> TrainedElements(const PartitionTable& table, const Inventory& inventory);

// InvalidArgument names the tensor: a unit or tensor is missing, unknown or listed twice; extents leave a hole,
// overlap, exceed the tensor, or name a shard that is not of the unit's stage and share; stages do not divide the
// shards, or a stage has no unit; boundaries are too few, descend, are not multiples of 16 or end before the tensors
// do; a cut divides an atom.
absl::Status Check(const PartitionTable& table, const Inventory& inventory);

// The bytes that a table is sent as and that its hash covers: its deterministic serialization.
std::string TableBytes(const PartitionTable& table);

// SHA-256, hex, of TableBytes.
std::string TableSha256(const PartitionTable& table);

}  // namespace muster::partition
