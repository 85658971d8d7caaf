// The memory of a schedule, found by walking it.
#pragma once

#include <cstdint>

#include "proto/inventory.pb.h"
#include "strategies/schedule/schedule.h"

namespace muster {

// Peak bytes of activations: what is kept from each forward to its backward plus what flows between units, fp32, for
// microbatches of `sequences` samples. Gather slots are not counted.
uint64_t PeakActivationBytes(const Schedule& schedule, const Inventory& inventory, uint64_t sequences);

}  // namespace muster
