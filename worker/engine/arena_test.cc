#include "worker/engine/arena.h"

#include <gtest/gtest.h>

#include <vector>

#include "models/inventory.h"

namespace muster::engine {
namespace {

Inventory Odd(uint32_t layers) {
  Model model;
  Gpt2& g = *model.mutable_gpt2();  // nothing divides
  g.set_layers(layers), g.set_heads(1), g.set_width(37), g.set_vocabulary(101), g.set_context(19);
  return *models::MakeInventory(model);
}

TEST(Arena, RunsCoverEveryTensorOnceWithItsOwnDecay) {
  const Inventory inventory = Odd(3);
  const ArenaLayout layout = LayOut(inventory);
  std::vector<int> decay(layout.elements, -1);
  for (const auto& run : layout.runs) {
    for (int64_t i = run.begin; i < run.begin + run.length; ++i) {
      ASSERT_EQ(decay[i], -1) << "two runs at " << i;
      decay[i] = run.decay;
    }
  }
  std::vector<bool> taken(layout.elements, false);
  for (const auto& [name, place] : layout.places) {
    EXPECT_EQ(place.begin % 16, 0) << name;
    EXPECT_EQ(static_cast<uint64_t>(place.elements), models::Elements(*place.tensor)) << name;
    for (int64_t i = place.begin; i < place.begin + place.elements; ++i) {
      ASSERT_FALSE(taken[i]) << name;
      taken[i] = true;
      ASSERT_EQ(decay[i], place.tensor->decay() ? 1 : 0) << name;
    }
  }
}

TEST(Arena, RunsAreFew) {
  // The embedding and the first block's matrices touch: one run. The head has only vectors, as the last block's end.
  EXPECT_EQ(LayOut(Odd(1)).runs.size(), 2u);
  EXPECT_EQ(LayOut(Odd(12)).runs.size(), 24u);
}

TEST(Arena, FrozenTensorsAreInNoRun) {
  Inventory inventory = Odd(1);
  inventory.mutable_units(0)->mutable_tensors(0)->set_frozen(true);
  const ArenaLayout layout = LayOut(inventory);
  const Place& frozen = layout.places.at(inventory.units(0).tensors(0).name());
  for (const auto& run : layout.runs) {
    EXPECT_TRUE(run.begin + run.length <= frozen.begin || run.begin >= frozen.begin + frozen.elements);
  }
}

}  // namespace
}  // namespace muster::engine
