// Every rank holds everything; gradients are summed over ranks bucket by bucket while backward continues (Li et al.
// 2020, "PyTorch Distributed", section 3.2: bucketing and overlap; only in the last microbatch, as its no_sync does).
#pragma once

#include <cstdint>

#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"
#include "proto/spec.pb.h"
#include "strategies/schedule/build.h"

namespace muster::ddp {

PartitionTable TableOf(const Inventory& inventory);

// Buckets are runs of whole units, filled from the model's end, where the backward begins: each is reduced as soon as
// the backward of its first unit is done. A tied tensor is in the bucket of the unit that owns it, whose backward comes
// after those that borrow it.
ScheduleRecipe RecipeOf(const Ddp& options, const Inventory& inventory);

// The default for the least bytes to reduce together: large enough for the link, small enough that most of the
// reduction overlaps backward.
uint64_t DefaultBucketBytes(const Inventory& inventory);

}  // namespace muster::ddp
