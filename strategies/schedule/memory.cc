#include "strategies/schedule/memory.h"

#include <algorithm>

#include "models/inventory.h"

namespace muster {

uint64_t PeakActivationBytes(const Schedule& schedule, const Inventory& inventory, uint64_t sequences) {
  uint64_t saved = 0, peak = 0;
  for (const Op& op : schedule.ops) {
    if (op.unit < 0 || op.unit >= inventory.units_size()) continue;
    const Unit& unit = inventory.units(op.unit);
    const uint64_t keeps = unit.saved_bytes() * sequences,
                   piece = models::PieceRows(sequences * inventory.context(), unit.piece_rows());
    if (op.kind == OpKind::kForward || op.kind == OpKind::kRecompute) {
      saved += keeps;
      peak = std::max(
          peak, saved + (unit.output_bytes() + unit.forward_bytes()) * sequences + unit.forward_piece_bytes() * piece);
    } else if (op.kind == OpKind::kBackward) {
      // What flows in is the gradient of the output.
      peak = std::max(peak, saved + (unit.output_bytes() + unit.backward_bytes()) * sequences +
                                unit.backward_piece_bytes() * piece);
      saved -= std::min(saved, keeps);
    }
  }
  return peak;
}

}  // namespace muster
