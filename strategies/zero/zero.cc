#include "strategies/zero/zero.h"

#include "strategies/ddp/ddp.h"

namespace muster::zero {
namespace {

constexpr double kMiB = 1 << 20;

}  // namespace

PartitionTable TableOf(const Zero& options, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                       size_t most_bytes) {
  return partition::Place(options.placement(), options.contiguous(), inventory, static_cast<uint32_t>(ranks.size()),
                          ranks, options.shares(), most_bytes);
}

ScheduleRecipe RecipeOf(const Zero& options, const Inventory& inventory) {
  ScheduleRecipe recipe;
  recipe.sharded = true;
  recipe.prefetch = static_cast<int32_t>(options.prefetch());
  recipe.parameters = options.stage() == 3 ? Parameters::kFreed : Parameters::kUpdated;
  const bool hold = options.accumulation() == ACCUMULATION_HOLD;
  recipe.gradients = options.stage() == 1 || hold ? Gradients::kWhole : Gradients::kOwned;
  recipe.gather_bytes = static_cast<uint64_t>(options.wrap_mib() * kMiB);
  if (options.stage() < 3 || hold) {
    recipe.reduce_bytes = options.has_bucket_mib() ? static_cast<uint64_t>(options.bucket_mib() * kMiB)
                                                   : ddp::DefaultBucketBytes(inventory);
  }
  return recipe;
}

}  // namespace muster::zero
