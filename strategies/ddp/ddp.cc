#include "strategies/ddp/ddp.h"

#include <algorithm>

#include "strategies/partition/flat.h"
#include "strategies/partition/planners.h"

namespace muster::ddp {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kLeastBucket = 1 * kMiB, kMostBucket = 25 * kMiB;  // 25 is PyTorch's bucket_cap_mb
constexpr uint64_t kBuckets = 16;

}  // namespace

PartitionTable TableOf(const Inventory& inventory) { return partition::Replicated(inventory); }

uint64_t DefaultBucketBytes(const Inventory& inventory) {
  return std::clamp(4 * partition::FlatElements(inventory) / kBuckets, kLeastBucket, kMostBucket);
}

ScheduleRecipe RecipeOf(const Ddp& options, const Inventory& inventory) {
  ScheduleRecipe recipe;
  recipe.replicated = true;
  recipe.reduce_bytes =
      options.has_bucket_mib() ? static_cast<uint64_t>(options.bucket_mib() * kMiB) : DefaultBucketBytes(inventory);
  return recipe;
}

}  // namespace muster::ddp
