// What the planners of chained tables share: where a tensor may be cut, and how cuts become a table.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"

namespace muster::partition {

// What the tensor takes of its unit's flat buffer.
uint64_t PaddedElements(const Tensor& tensor);

// The place nearest to `at` where the tensor may be cut: 0, its PaddedElements, or a multiple of 16 elements that its
// atom allows; between rows, unless an element is its atom and rows at multiples of 16 are more than `coarse` apart.
uint64_t NearestCut(const Tensor& tensor, uint64_t at, uint64_t coarse);

// Adds a unit whose tensors lie in `order` and whose shards own what is between neighbours of `boundaries`.
void AddUnit(PartitionTable& table, const Unit& unit, const std::vector<int>& order,
             absl::Span<const uint64_t> boundaries);

// All units' flat buffers, one behind the other, cut at `cuts`: one more than there are shards, ascending, from 0 to
// their end.
PartitionTable CutInRuns(const Inventory& inventory, absl::Span<const uint64_t> cuts);

}  // namespace muster::partition
