// Tiny-FSDP's published rule for assigning tensors to ranks (github.com/liangyuwang/Tiny-FSDP): in the tensors' order,
// one rank after another; target = total / ranks; a rank is full when the next tensor would take it above target * (1 +
// evenness_priority * (its size / target - 1)); the last rank takes the rest.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/inventory.pb.h"

namespace muster::bench {

// Elements by rank.
std::vector<uint64_t> TinyFsdp(const Inventory& inventory, uint32_t ranks, double evenness_priority);

}  // namespace muster::bench
