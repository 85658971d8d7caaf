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

}  // namespace muster
