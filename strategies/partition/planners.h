// Who shall own what: the ways to fill a partition table. Pure; the same table in every process. All but Rows are
// chained: a shard's part of a unit is one range of its flat buffer, cut at multiples of 16 elements, so it is written
// as boundaries. All but Even respect the tensors' atoms.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"
#include "proto/spec.pb.h"

namespace muster {

// Where a rank is, or will be.
struct RankPlace {
  uint32_t node = 0;          // equal on the ranks of one node
  uint64_t memory_bytes = 0;  // of its slot; 0: not known
  // Shares by speed only:
  double flops_per_second = 0;  // that ranks measured on its slot; 0: not known
  uint64_t most_elements = 0;   // of parameters that it may own; 0: no bound
};

}  // namespace muster

namespace muster::partition {

// One shard owns everything.
PartitionTable Replicated(const Inventory& inventory);

// Every unit's flat buffer cut into equal parts, of a multiple of 16 elements; the last ones end in padding.
PartitionTable Even(const Inventory& inventory, uint32_t shards);

// Every tensor cut along its first dimension, as torch.chunk cuts and so PyTorch's FSDP2: rows / shards of them each,
// rounded up; the last shards may have fewer, or none. A gather is of as many ranges as there are parts.
PartitionTable Rows(const Inventory& inventory, uint32_t shards);

// Tensors undivided: the largest first, each to the shard that owns least (longest processing time first, Graham 1969:
// at most 4/3 of the best). Among tensors of equal size the choice is such that each unit has several owners.
PartitionTable WholeTensors(const Inventory& inventory, uint32_t shards);
// The same in the model's order, so that a shard owns a run of layers; no other cuts have a smaller largest part.
PartitionTable WholeTensorsInRuns(const Inventory& inventory, uint32_t shards);

// Shares in proportion to `weights`, one a shard, each above 0, both of the model and of every unit that is not small,
// so that no owner's broadcast holds a unit up. Within that, tensors stay whole where they fit; one that is larger than
// what is left of a share is cut between rows, or inside a row that is long beside the share.
PartitionTable Ragged(const Inventory& inventory, absl::Span<const uint64_t> weights);
// Shares of the model only, in its order: a shard owns a run of layers.
PartitionTable RaggedInRuns(const Inventory& inventory, absl::Span<const uint64_t> weights);

// Per shard what its ranks have least of. Rank r holds shard r % shards. By memory: where it is known of all ranks,
// else 1. By speed: unknown ones count as the mean of those that are known, 1 where none is; `elements` of parameters
// are shared out in proportion, and what is beyond a shard's bound goes to the others in proportion, and so on; the
// bounds themselves where even they do not hold all.
std::vector<uint64_t> Weights(absl::Span<const RankPlace> ranks, uint32_t shards, Shares by = SHARES_MEMORY,
                              uint64_t elements = 0);

// The table of a spec's placement. Even where it is unspecified; `in_runs` matters to whole and ragged, `by` to ragged.
PartitionTable Place(Placement placement, bool in_runs, const Inventory& inventory, uint32_t shards,
                     absl::Span<const RankPlace> ranks, Shares by = SHARES_MEMORY);

}  // namespace muster::partition
