#include "strategies/single/single.h"

namespace muster::single {

Schedule Emit(const Inventory& inventory, int32_t microbatches, bool clip) {
  Schedule schedule;
  schedule.microbatches = microbatches;
  const int32_t units = inventory.units_size();
  for (int32_t m = 0; m < microbatches; ++m) {
    for (int32_t u = 0; u < units; ++u) schedule.ops.push_back({.kind = OpKind::kForward, .unit = u, .microbatch = m});
    for (int32_t u = units; u-- > 0;) {
      schedule.ops.push_back({.kind = OpKind::kBackward, .unit = u, .microbatch = m});
    }
  }
  if (clip) schedule.ops.push_back({.kind = OpKind::kClipGradients});
  schedule.ops.push_back({.kind = OpKind::kOptimizerStep});
  return schedule;
}

}  // namespace muster::single
