// One rank holds everything: A x (forward, backward), then clip and step.
#pragma once

#include "proto/inventory.pb.h"
#include "strategies/schedule/schedule.h"

namespace muster::single {

Schedule Emit(const Inventory& inventory, int32_t microbatches, bool clip);

}  // namespace muster::single
