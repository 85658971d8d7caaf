#include "strategies/schedule/op_names.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace muster {

OpNames::OpNames(const Schedule& schedule, const Inventory& inventory) : ops_(schedule.ops.size()) {
  for (const Unit& unit : inventory.units()) units_.push_back(unit.name());
  Stretch open;
  for (size_t i = 0; i < schedule.ops.size(); ++i) {
    const Op& op = schedule.ops[i];
    if (op.kind == OpKind::kForward && op.unit == 0 && op.microbatch > open.microbatch) {
      Close(std::exchange(open, Stretch{.first_op = i, .microbatch = op.microbatch}));
    }
    open.entries.push_back(
        {op.kind, op.unit, op.unit_end, op.microbatch < 0 ? kNone : op.microbatch - open.microbatch});
  }
  Close(std::move(open));
}

void OpNames::Close(Stretch stretch) {
  if (!stretches_.empty() && stretches_.back().entries == stretch.entries) {
    ++stretches_.back().times;
    return;
  }
  stretch.entries.shrink_to_fit();
  stretches_.push_back(std::move(stretch));
}

Op OpNames::At(uint64_t index) const {
  const auto after = std::upper_bound(stretches_.begin(), stretches_.end(), index,
                                      [](uint64_t i, const Stretch& stretch) { return i < stretch.first_op; });
  const Stretch& stretch = *std::prev(after);
  const uint64_t offset = index - stretch.first_op;
  const Entry& entry = stretch.entries[offset % stretch.entries.size()];
  const auto repeated = static_cast<int32_t>(offset / stretch.entries.size());
  const int32_t microbatch = entry.microbatch == kNone ? -1 : stretch.microbatch + repeated + entry.microbatch;
  return {.kind = entry.kind, .unit = entry.unit, .unit_end = entry.unit_end, .microbatch = microbatch};
}

std::string OpNames::NameOf(uint64_t index) const { return index < ops_ ? Print(At(index), units_) : ""; }

OpKind OpNames::KindOf(uint64_t index) const { return index < ops_ ? At(index).kind : OpKind::kEnd; }

size_t OpNames::bytes() const {
  size_t bytes = 0;
  for (const std::string& unit : units_) bytes += sizeof(unit) + unit.size();
  for (const Stretch& stretch : stretches_) bytes += sizeof(stretch) + sizeof(Entry) * stretch.entries.size();
  return bytes;
}

}  // namespace muster
