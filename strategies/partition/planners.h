// Who shall own what: the ways to fill a partition table. Pure; the same table in every process.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"

namespace muster {

// Where a rank is, or will be.
struct RankPlace {
  uint32_t node = 0;          // equal on the ranks of one node
  uint64_t memory_bytes = 0;  // of its slot; 0: not known
};

}  // namespace muster

namespace muster::partition {

// One shard owns everything.
PartitionTable Replicated(const Inventory& inventory);

// Every unit's flat buffer cut into equal parts, of a multiple of 16 elements; the last ones end in padding.
PartitionTable Even(const Inventory& inventory, uint32_t shards);

}  // namespace muster::partition
