// One rank holds everything: A x (forward, backward), then clip and step.
#pragma once

#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"
#include "strategies/schedule/build.h"

namespace muster::single {

PartitionTable TableOf(const Inventory& inventory);
ScheduleRecipe RecipeOf();

}  // namespace muster::single
