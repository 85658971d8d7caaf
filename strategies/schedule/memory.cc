#include "strategies/schedule/memory.h"

#include <algorithm>

namespace muster {

uint64_t PeakActivationBytes(const Schedule& schedule, const Inventory& inventory, uint64_t sequences) {
  uint64_t saved = 0, peak = 0;
  for (const Op& op : schedule.ops) {
    if (op.unit < 0 || op.unit >= inventory.units_size()) continue;
    const Unit& unit = inventory.units(op.unit);
    // A backward makes gradients of what the unit saved and of its input beside what is saved.
    uint64_t working = unit.output_bytes();
    if (op.kind == OpKind::kBackward) working += unit.saved_bytes();
    if (op.kind == OpKind::kForward || op.kind == OpKind::kRecompute) saved += unit.saved_bytes();
    peak = std::max(peak, saved + working);
    if (op.kind == OpKind::kBackward) saved -= std::min(saved, unit.saved_bytes());
  }
  return peak * sequences;
}

}  // namespace muster
