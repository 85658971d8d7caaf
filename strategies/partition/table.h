// Partition tables: reading, checking, identifying. planners.h fills them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"
#include "strategies/partition/flat.h"

namespace muster::partition {

// Elements [begin, end) of a unit's flat buffer. Padding belongs to the owner of what lies before it.
struct OwnedRange {
  uint32_t shard = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  friend bool operator==(const OwnedRange&, const OwnedRange&) = default;
};

// A unit's flat buffer in its table's order, and who owns what of it: ascending ranges that cover it, neighbours of
// different shards, none empty.
struct OwnedUnit {
  FlatUnit flat;
  std::vector<OwnedRange> ranges;
};

// REQUIRES: the table passed Check.
std::vector<OwnedUnit> OwnedUnits(const PartitionTable& table, const Inventory& inventory);

// By shard: elements of the flat buffers that it owns, padding included.
std::vector<uint64_t> OwnedElements(const std::vector<OwnedUnit>& units, uint32_t shards);

// InvalidArgument naming the tensor: a unit or tensor is missing, unknown or twice; extents leave a hole, overlap,
// reach past the tensor, or name a shard that does not exist; boundaries are too few, descend, are no multiples of 16
// or end before the tensors do; a cut divides what its atom keeps whole.
absl::Status Check(const PartitionTable& table, const Inventory& inventory);

// The bytes that a table's hash is of, and in which it is handed out: its deterministic serialisation.
std::string TableBytes(const PartitionTable& table);

// SHA-256, hex, of TableBytes.
std::string TableSha256(const PartitionTable& table);

}  // namespace muster::partition
