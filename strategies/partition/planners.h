// The ways to fill a partition table. Pure; the same table in every process. All but Rows are chained: a shard's part
// of a unit is one range of its flat buffer, cut at multiples of 16 elements, and is stored as boundaries; except for
// Even of units that are frozen in part. All but Even respect the tensors' atoms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"
#include "proto/spec.pb.h"

namespace muster {

// The place of a rank, current or planned.
struct RankPlace {
  uint32_t node = 0;          // the same for the ranks of one node
  uint64_t memory_bytes = 0;  // of its slot; 0: unknown
  // Shares by speed only:
  double flops_per_second = 0;  // measured on its slot; 0: unknown
  uint64_t most_elements = 0;   // parameters that it may own; 0: no bound
};

}  // namespace muster

namespace muster::partition {

inline constexpr size_t kAnySize = std::numeric_limits<size_t>::max();

// Every planner stops at the unit with which the serialized table exceeds `most_bytes`: such a table is incomplete, and
// its size shows it.

// One shard owns everything.
PartitionTable Replicated(const Inventory& inventory);

// Cuts every unit's flat buffer into equal parts of a multiple of 16 elements; the last ones end in padding. Of a unit
// that is frozen in part, what is trained and what is frozen are cut so each.
PartitionTable Even(const Inventory& inventory, uint32_t shards, size_t most_bytes = kAnySize);

// Cuts every tensor along its first dimension, as torch.chunk and so PyTorch's FSDP2: rows / shards each, rounded up;
// the last shards may have fewer, or none. A gather has as many ranges as there are parts.
PartitionTable Rows(const Inventory& inventory, uint32_t shards, size_t most_bytes = kAnySize);

// Whole tensors: the largest first, each to the shard that owns least (longest processing time first, Graham 1969: at
// most 4/3 of the optimum). Among tensors of equal size the choice gives each unit several owners.
PartitionTable WholeTensors(const Inventory& inventory, uint32_t shards, size_t most_bytes = kAnySize);
// The same in the model's order, so that a shard owns a run of layers; no other cuts have a smaller largest part.
PartitionTable WholeTensorsInRuns(const Inventory& inventory, uint32_t shards, size_t most_bytes = kAnySize);

// Shares in proportion to `weights`, one for each shard, each above 0, both of the model and of every unit that is not
// small, so that no owner's broadcast slows a unit. Within that, tensors stay whole where they fit; one that is larger
// than the rest of a share is cut between rows, or inside a row that is long compared to the share.
PartitionTable Ragged(const Inventory& inventory, absl::Span<const uint64_t> weights, size_t most_bytes = kAnySize);
// Shares of the whole model only, in its order: a shard owns a run of layers.
PartitionTable RaggedInRuns(const Inventory& inventory, absl::Span<const uint64_t> weights,
                            size_t most_bytes = kAnySize);

// Each shard's weight is the smallest of its ranks, which are copies of `shards` neighbors each. By memory: if it is
// known of all ranks, otherwise 1. By speed: an unknown one counts as the mean of the known ones, or 1 if there are
// none. `elements` of parameters are divided in proportion; what exceeds a shard's bound is divided among the others in
// proportion, and so on. If even the bounds do not hold all elements, the result is the bounds.
std::vector<uint64_t> Weights(absl::Span<const RankPlace> ranks, uint32_t shards, Shares by = SHARES_MEMORY,
                              uint64_t elements = 0);

// The table of a spec's placement. Even if it is unspecified; `in_runs` applies to whole and ragged, `by` to ragged.
PartitionTable Place(Placement placement, bool in_runs, const Inventory& inventory, uint32_t shards,
                     absl::Span<const RankPlace> ranks, Shares by = SHARES_MEMORY, size_t most_bytes = kAnySize);

}  // namespace muster::partition
