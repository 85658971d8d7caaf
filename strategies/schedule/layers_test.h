// A small model for the tests of schedules.
#pragma once

#include "models/inventory.h"

namespace muster {

inline Inventory Layers(uint32_t layers) {
  Model model;
  model.mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  model.mutable_gpt2()->set_layers(layers);
  return *models::MakeInventory(model);
}

// With units [begin, end) frozen.
inline Inventory Frozen(Inventory inventory, int begin, int end) {
  for (int u = begin; u < end; ++u) {
    for (Tensor& tensor : *inventory.mutable_units(u)->mutable_tensors()) tensor.set_frozen(true);
  }
  return inventory;
}

// Whose middle layers exchange statistics.
inline Inventory Exchanging() {
  Inventory inventory = Layers(2);
  for (int u : {1, 2}) {
    Exchange& exchange = *inventory.mutable_units(u)->mutable_exchange();
    exchange.set_collectives(3), exchange.set_gathered_bytes(1000), exchange.set_summed_bytes(800);
  }
  return inventory;
}

}  // namespace muster
