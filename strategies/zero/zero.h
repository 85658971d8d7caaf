// Shards the optimizer state, then also gradients, then also parameters over the ranks (Rajbhandari et al. 2020,
// "ZeRO", section 5: P_os, P_os+g, P_os+g+p), by default as whole tensors.
#pragma once

#include "absl/types/span.h"
#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"
#include "proto/spec.pb.h"
#include "strategies/partition/planners.h"
#include "strategies/schedule/build.h"

namespace muster::zero {

// `most_bytes`: a table that takes more is not made in full (partition/planners.h).
PartitionTable TableOf(const Zero& options, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                       size_t most_bytes);

// Stages 1 and 2 gather each unit in place before its first use, overlapped with the forward of the units before it.
ScheduleRecipe RecipeOf(const Zero& options, const Inventory& inventory);

}  // namespace muster::zero
