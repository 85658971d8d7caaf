#include "strategies/fsdp/fsdp.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "strategies/ddp/ddp.h"

namespace muster::fsdp {
namespace {

constexpr double kMiB = 1 << 20;

// Ranks that share one copy of the model: the ranks of a node, if all nodes have equally many.
absl::StatusOr<uint32_t> ShardRanks(const Fsdp& options, absl::Span<const RankPlace> ranks) {
  const uint32_t world = static_cast<uint32_t>(ranks.size());
  if (options.reshard() == RESHARD_NO_SHARD) return 1;
  if (options.reshard() != RESHARD_HYBRID) return world;
  uint32_t shards = options.shard_ranks();
  if (shards == 0) {
    std::map<uint32_t, uint32_t> of_node;
    for (const RankPlace& rank : ranks) ++of_node[rank.node];
    shards = of_node.begin()->second;
    for (const auto& [node, count] : of_node) {
      if (count == shards) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("strategy: hybrid needs the same number of ranks on every node: there are ", shards, " and ",
                       count, "; strategy.shard_ranks says how many share one copy of the model"));
    }
  }
  if (shards > world || world % shards != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("strategy: hybrid in groups of ", shards, " ranks does not divide ", world, " ranks"));
  }
  return shards;
}

}  // namespace

absl::StatusOr<PartitionTable> TableOf(const Fsdp& options, const Inventory& inventory,
                                       absl::Span<const RankPlace> ranks, size_t most_bytes) {
  const absl::StatusOr<uint32_t> shards = ShardRanks(options, ranks);
  if (!shards.ok()) return shards.status();
  return partition::Place(options.placement(), false, inventory, *shards, ranks, options.shares(), most_bytes);
}

ScheduleRecipe RecipeOf(const Fsdp& options, const Inventory& inventory, uint32_t shards, uint32_t world) {
  ScheduleRecipe recipe;
  recipe.sharded = shards > 1;
  recipe.replicated = world > shards;
  const bool hold = options.accumulation() == ACCUMULATION_HOLD;
  if (recipe.sharded) {
    recipe.parameters = options.reshard() == RESHARD_SHARD_GRAD_OP ? Parameters::kKept : Parameters::kFreed;
    recipe.gradients = hold ? Gradients::kWhole : Gradients::kOwned;
  }
  recipe.prefetch = static_cast<int32_t>(options.prefetch());
  recipe.gather_bytes = static_cast<uint64_t>(options.wrap_mib() * kMiB);
  if (!recipe.sharded || hold) recipe.reduce_bytes = ddp::DefaultBucketBytes(inventory);
  return recipe;
}

}  // namespace muster::fsdp
