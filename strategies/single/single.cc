#include "strategies/single/single.h"

#include "strategies/partition/planners.h"

namespace muster::single {

PartitionTable TableOf(const Inventory& inventory) { return partition::Replicated(inventory); }

ScheduleRecipe RecipeOf() { return {}; }

}  // namespace muster::single
