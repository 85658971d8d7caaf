// Parameters, gradients and optimizer state are sharded over the ranks; a unit's parameters are whole while it computes
// (Zhao et al. 2023, "PyTorch FSDP": full_shard, shard_grad_op, hybrid, no_shard).
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"
#include "proto/spec.pb.h"
#include "strategies/partition/planners.h"
#include "strategies/schedule/build.h"

namespace muster::fsdp {

// `most_bytes`: a table that takes more is not made in full (partition/planners.h).
// InvalidArgument: hybrid on ranks that the groups do not divide; the message begins with "strategy: ".
absl::StatusOr<PartitionTable> TableOf(const Fsdp& options, const Inventory& inventory,
                                       absl::Span<const RankPlace> ranks, size_t most_bytes);

ScheduleRecipe RecipeOf(const Fsdp& options, const Inventory& inventory, uint32_t shards, uint32_t world);

}  // namespace muster::fsdp
