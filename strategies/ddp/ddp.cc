#include "strategies/ddp/ddp.h"

#include <algorithm>

#include "strategies/partition/flat.h"

namespace muster::ddp {
namespace {

// Units at the model's front, whose backward comes last: what waits there for company is hidden behind nothing, so
// smaller buckets go at once.
constexpr int32_t kFrontUnits = 3;
constexpr uint64_t kFrontBytes = 1 << 20;

}  // namespace

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
      const int32_t backward = last();
      if (m + 1 < options.microbatches) continue;
      // The loss is complete, and this small one hides behind the rest of the backward.
      if (u + 1 == units) {
        ops.push_back(
            {.kind = OpKind::kReduceScalars, .stream = Stream::kReduce, .group = kWorldGroup, .waits = {backward}});
      }
      const uint64_t enough = u < kFrontUnits ? std::min(options.bucket_bytes, kFrontBytes) : options.bucket_bytes;
      bytes += 4 * partition::Flatten(inventory.units(u)).elements;
      if (bytes == 0 || (bytes < enough && u > 0)) continue;
      ops.push_back({.kind = OpKind::kReduce,
                     .unit = u,
                     .unit_end = bucket_end,
                     .stream = Stream::kReduce,
                     .group = kWorldGroup,
                     .waits = {backward}});
      bucket_end = u;
      bytes = 0;
    }
  }
  const int32_t reduced = last();  // and with it all before it on its stream
  if (options.clip) ops.push_back({.kind = OpKind::kClipGradients, .waits = {reduced}});
  ops.push_back({.kind = OpKind::kOptimizerStep, .waits = {reduced}});
  return schedule;
}

}  // namespace muster::ddp
