#include "strategies/defaults.h"

#include "strategies/optimizer_plan.h"

namespace muster::strategies {
namespace {

// Defaults that zero and fsdp share.
template <typename Sharded>
void Fill(Sharded& sharded, Placement placement) {
  if (!sharded.has_placement()) sharded.set_placement(placement);
  if (!sharded.has_accumulation()) sharded.set_accumulation(ACCUMULATION_REDUCE);
  if (!sharded.has_prefetch()) sharded.set_prefetch(1);
  if (sharded.placement() == PLACEMENT_RAGGED && !sharded.has_shares()) sharded.set_shares(SHARES_MEMORY);
}

}  // namespace

void FillDefaults(const Optimizer& optimizer, Strategy& strategy) {
  if (strategy.has_zero()) {
    Zero& zero = *strategy.mutable_zero();
    if (!zero.has_stage()) zero.set_stage(3);
    Fill(zero, PLACEMENT_WHOLE);
  } else if (strategy.has_fsdp()) {
    Fsdp& fsdp = *strategy.mutable_fsdp();
    if (!fsdp.has_reshard()) fsdp.set_reshard(RESHARD_FULL_SHARD);
    Fill(fsdp, NeedsWholeTensors(optimizer) ? PLACEMENT_WHOLE : PLACEMENT_EVEN);
  }
}

}  // namespace muster::strategies
