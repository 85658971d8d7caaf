// The stretches of a model's units that an inventory has: the whole model, or those of one stage of a pipeline. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/inventory.pb.h"

namespace muster {

struct ChunkSpan {
  int32_t begin = 0, end = 0;      // units of the inventory
  bool first = true, last = true;  // it begins the model, it ends it
};

// In their order; they cover all units.
std::vector<ChunkSpan> ChunksOf(const Inventory& inventory);

// By unit: the number of its chunk.
std::vector<int32_t> ChunkByUnit(const Inventory& inventory);

// By unit, per sample, fp32: what the unit before hands to it; of the model's first one, what it keeps itself.
std::vector<uint64_t> InputBytes(const Inventory& inventory);

}  // namespace muster
