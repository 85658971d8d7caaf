#include "strategies/ddp/ddp.h"

#include "strategies/partition/flat.h"

namespace muster::ddp {

Schedule Emit(const Inventory& inventory, const Options& options) {
  Schedule schedule;
  schedule.microbatches = options.microbatches;
  std::vector<Op>& ops = schedule.ops;
  const auto last = [&ops] { return static_cast<int32_t>(ops.size()) - 1; };
  const int32_t units = inventory.units_size();
  for (int32_t m = 0; m < options.microbatches; ++m) {
    for (int32_t u = 0; u < units; ++u) ops.push_back({.kind = OpKind::kForward, .unit = u, .microbatch = m});
    int32_t bucket_end = units;
    uint64_t bytes = 0;
    for (int32_t u = units; u-- > 0;) {
      ops.push_back({.kind = OpKind::kBackward, .unit = u, .microbatch = m});
      if (m + 1 < options.microbatches) continue;
      bytes += 4 * partition::Flatten(inventory.units(u)).elements;
      if (bytes == 0 || (bytes < options.bucket_bytes && u > 0)) continue;
      ops.push_back({.kind = OpKind::kReduce,
                     .unit = u,
                     .unit_end = bucket_end,
                     .stream = Stream::kReduce,
                     .group = kWorldGroup,
                     .waits = {last()}});
      bucket_end = u;
      bytes = 0;
    }
  }
  // Behind the last bucket on its stream, so that who waits for it waits for all of them.
  ops.push_back({.kind = OpKind::kReduceScalars, .stream = Stream::kReduce, .group = kWorldGroup, .waits = {last()}});
  const int32_t reduced = last();
  if (options.clip) ops.push_back({.kind = OpKind::kClipGradients, .waits = {reduced}});
  ops.push_back({.kind = OpKind::kOptimizerStep, .waits = {reduced}});
  return schedule;
}

}  // namespace muster::ddp
