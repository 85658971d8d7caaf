// Shared by the planners of chained tables: where a tensor may be cut, and how cuts become a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"

namespace muster::partition {

// The elements that the tensor takes of its unit's flat buffer.
uint64_t PaddedElements(const Tensor& tensor);

// The allowed cut nearest to `at`: 0, the tensor's PaddedElements, or a multiple of 16 elements that its atom allows.
// Between rows, unless the atom is one element and rows at multiples of 16 are more than `coarse` apart.
uint64_t NearestCut(const Tensor& tensor, uint64_t at, uint64_t coarse);

// Adds a unit whose tensors are in `order`; each shard owns the elements between two neighboring `boundaries`.
void AddUnit(PartitionTable& table, const Unit& unit, const std::vector<int>& order,
             absl::Span<const uint64_t> boundaries);

// Counts a table's bytes while units are added to it.
class SizeLimit {
 public:
  explicit SizeLimit(size_t most_bytes) : most_bytes_(most_bytes) {}
  // Called after each unit: whether the table is too large now.
  bool Exceeded(const PartitionTable& table) {
    bytes_ += table.units(table.units_size() - 1).ByteSizeLong();
    return bytes_ > most_bytes_;
  }

 private:
  const size_t most_bytes_;
  size_t bytes_ = 0;
};

// All units' flat buffers, one behind the other, cut at `cuts`: one more than there are shards, ascending, from 0 to
// their end.
PartitionTable CutInRuns(const Inventory& inventory, absl::Span<const uint64_t> cuts, size_t most_bytes);

}  // namespace muster::partition
