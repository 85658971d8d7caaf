// Where every tensor of a model lies in the flat arenas (parameters, gradients, optimizer state): units one after
// another in the inventory's order, each laid out by strategies/partition/flat.h. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/inventory.pb.h"
#include "worker/engine/optimizer.h"

namespace muster::engine {

struct Place {
  int64_t begin = 0;  // element in the arena
  int64_t elements = 0;
  std::vector<int64_t> shape;
  const Tensor* tensor = nullptr;  // of the inventory that the layout was made from
};

struct ArenaLayout {
  std::map<std::string, Place> places;  // by tensor name
  std::vector<Run> runs;                // ascending; frozen tensors are in none
  std::vector<int64_t> units;           // where each unit begins, and where the last one ends
  int64_t elements = 0;                 // padding included
};

// `inventory` must outlive the result. At most two runs a unit: with and without weight decay. Padding belongs to the
// run before it: its gradient and state are zero, so it stays zero.
ArenaLayout LayOut(const Inventory& inventory);

}  // namespace muster::engine
