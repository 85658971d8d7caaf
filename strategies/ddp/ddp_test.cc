#include "strategies/ddp/ddp.h"

#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_split.h"
#include "models/inventory.h"
#include "strategies/partition/flat.h"
#include "strategies/schedule/check.h"

namespace muster::ddp {
namespace {

Inventory Layers(uint32_t layers) {
  Model model;
  model.mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  model.mutable_gpt2()->set_layers(layers);
  return *models::MakeInventory(model);
}

Schedule Emit(const Inventory& inventory, int32_t microbatches, double bucket_mib) {
  Ddp options;
  options.set_bucket_mib(bucket_mib);
  ScheduleRecipe recipe = RecipeOf(options, inventory);
  recipe.microbatches = microbatches;
  return Build(inventory, recipe);
}

TEST(Ddp, ReducesEachUnitAsItsBackwardIsDoneInTheLastMicrobatchOnly) {
  const Inventory inventory = Layers(1);
  const std::vector<std::string> lines =
      absl::StrSplit(Print(Emit(inventory, 2, 1e-6), inventory), '\n', absl::SkipEmpty());
  EXPECT_EQ(
      lines,
      (std::vector<std::string>{
          "Forward embedding m0", "Forward h.0 m0", "Forward head m0", "Backward head m0", "Backward h.0 m0",
          "Backward embedding m0", "Forward embedding m1", "Forward h.0 m1", "Forward head m1", "Backward head m1",
          "ReduceScalars on reduce in world after 9", "AllReduce head on reduce in replicas after 9", "Backward h.0 m1",
          "AllReduce h.0 on reduce in replicas after 12", "Backward embedding m1",
          "AllReduce embedding on reduce in replicas after 14", "GradientNorm after 15", "OptimizerStep"}));
}

TEST(Ddp, ChecksForRandomModelsAndCoversEveryUnitOnce) {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    const Inventory inventory = Layers(1 + random() % 20);
    const uint64_t bucket = uint64_t{1} << (random() % 28);
    const Schedule schedule =
        Emit(inventory, static_cast<int32_t>(1 + random() % 5), static_cast<double>(bucket) / (1 << 20));
    ASSERT_EQ(Check(schedule, inventory), absl::OkStatus());
    int32_t next = inventory.units_size();
    for (const Op& op : schedule.ops) {
      if (op.kind != OpKind::kAllReduce) continue;
      EXPECT_EQ(op.unit_end, next) << "buckets follow one another from the end";
      next = op.unit;
      uint64_t bytes = 0;
      for (int32_t u = op.unit; u < op.unit_end; ++u) bytes += 4 * partition::Flatten(inventory.units(u)).elements;
      EXPECT_TRUE(bytes >= bucket || op.unit == 0 || (op.unit < 3 && bytes >= 1 << 20)) << "only those at the front";
    }
    EXPECT_EQ(next, 0);
  }
}

}  // namespace
}  // namespace muster::ddp
