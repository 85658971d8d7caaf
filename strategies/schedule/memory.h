// The memory of a schedule, found by walking it.
#pragma once

#include <cstdint>

#include "proto/inventory.pb.h"
#include "strategies/schedule/schedule.h"

namespace muster {

// Peak bytes of activations, fp32, for microbatches of `sequences` samples: what is kept from each forward to its
// backward, what flows between units, and each unit's temporaries, as the inventory states them. Gather slots are not
// counted.
uint64_t PeakActivationBytes(const Schedule& schedule, const Inventory& inventory, uint64_t sequences);

}  // namespace muster
