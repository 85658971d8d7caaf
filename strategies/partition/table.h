// Partition tables: filling, checking, identifying.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"

namespace muster::partition {

// One shard owns everything.
PartitionTable Replicated(const Inventory& inventory);

// InvalidArgument naming the tensor: a unit or tensor is missing, unknown or twice; extents leave a hole, overlap,
// reach past the tensor, or name a shard that does not exist.
absl::Status Check(const PartitionTable& table, const Inventory& inventory);

// SHA-256, hex, of the table's deterministic serialisation.
std::string TableSha256(const PartitionTable& table);

}  // namespace muster::partition
