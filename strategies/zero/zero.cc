#include "strategies/zero/zero.h"

#include "strategies/ddp/ddp.h"

namespace muster::zero {
namespace {

constexpr double kMiB = 1 << 20;

}  // namespace

PartitionTable TableOf(const Zero& options, const Inventory& inventory, absl::Span<const RankPlace> ranks) {
  return partition::Place(options.placement(), options.contiguous(), inventory, static_cast<uint32_t>(ranks.size()),
                          ranks, options.shares());
}

Shape ShapeOf(const Zero& options, const Inventory& inventory) {
  Shape shape;
  shape.sharded = true;
  shape.prefetch = static_cast<int32_t>(options.prefetch());
  shape.parameters = options.stage() == 3 ? Parameters::kFreed : Parameters::kUpdated;
  const bool hold = options.accumulation() == ACCUMULATION_HOLD;
  shape.gradients = options.stage() == 1 || hold ? Gradients::kWhole : Gradients::kOwned;
  shape.gather_bytes = static_cast<uint64_t>(options.wrap_mib() * kMiB);
  if (options.stage() < 3 || hold) {
    shape.reduce_bytes = options.has_bucket_mib() ? static_cast<uint64_t>(options.bucket_mib() * kMiB)
                                                  : ddp::DefaultBucketBytes(inventory);
  }
  return shape;
}

}  // namespace muster::zero
