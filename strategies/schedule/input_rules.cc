#include "strategies/schedule/input_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

// Between their offload and their release: the one that a forward reads, and one on its way.
constexpr size_t kMostOnDevice = 2;

size_t Slots(int32_t slots) { return static_cast<size_t>(std::max(0, slots)); }

}  // namespace

InputRules::InputRules(const Schedule& schedule, const Inventory& inventory)
    : inventory_(inventory),
      recomputed_(static_cast<size_t>(inventory.units_size())),
      forwards_(Slots(schedule.microbatches)),
      forwarded_(forwards_.size()),
      slot_of_(recomputed_.size(), -1),
      host_slot_of_(recomputed_.size(), -1),
      slots_(Slots(schedule.input_slots)),
      host_slots_(Slots(schedule.host_input_slots)) {
  for (const Op& op : schedule.ops) {
    const bool valid = op.unit >= 0 && op.unit < inventory.units_size();
    if (valid && Traits(op.kind).pass == Pass::kRecompute) recomputed_[static_cast<size_t>(op.unit)] = true;
  }
}

InputRules::Finding InputRules::Run(const Op& op, size_t at) {
  switch (Traits(op.kind).inputs) {
    case InputUse::kNone:
      return Traits(op.kind).pass == Pass::kNone ? Finding{} : FollowPass(op, at);
    case InputUse::kOffload:
      return Offload(op, at);
    case InputUse::kRelease:
      return Release(op);
    case InputUse::kFetch:
      return Fetch(op, at);
  }
  return {};
}

InputRules::Finding InputRules::Offload(const Op& op, size_t at) {
  const Key key(op.unit, op.microbatch);
  if (op.unit == 0 || !recomputed_[static_cast<size_t>(op.unit)]) return {.wrong = "the unit does not keep its input"};
  if (forwarded_[op.microbatch] != op.unit + 1) return {.wrong = "not offloaded right after its forward"};
  if (!inputs_.emplace(key, Input{.offloaded = at}).second) return {.wrong = "offloaded twice"};
  if (++on_device_ > kMostOnDevice) return {.wrong = absl::StrCat("more than ", kMostOnDevice, " wait on the device")};
  if (const auto wrong = Take(op, host_slots_, host_slot_of_)) return {.wrong = wrong};
  return {.follows = {forwards_[op.microbatch][0], host_slots_[op.slot].freed}};
}

InputRules::Finding InputRules::Release(const Op& op) {
  const auto found = inputs_.find({op.unit, op.microbatch});
  if (found == inputs_.end()) return {.wrong = "released, but not offloaded"};
  if (std::exchange(found->second.released, true)) return {.wrong = "released twice"};
  --on_device_;
  return {.follows = {found->second.offloaded}};
}

InputRules::Finding InputRules::Fetch(const Op& op, size_t at) {
  const auto found = inputs_.find({op.unit, op.microbatch});
  if (found == inputs_.end()) return {.wrong = "fetched, but not offloaded"};
  Input& input = found->second;
  if (!input.released) return {.wrong = "fetched before its release"};
  if (input.fetched.has_value()) return {.wrong = "fetched twice"};
  input.fetched = at, input.slot = op.slot;
  if (const auto wrong = Take(op, slots_, slot_of_)) return {.wrong = wrong};
  host_slots_[host_slot_of_[op.unit]] = {.freed = at};
  return {.follows = {input.offloaded, slots_[op.slot].freed}};
}

InputRules::Finding InputRules::FollowPass(const Op& op, size_t at) {
  if (Traits(op.kind).pass == Pass::kForward) {
    forwards_[op.microbatch] = {forwards_[op.microbatch][1], at};
    forwarded_[op.microbatch] = op.unit + 1;
    return {};
  }
  const auto found = inputs_.find({op.unit, op.microbatch});
  if (found == inputs_.end()) return {};
  const Input input = found->second;
  if (!input.fetched.has_value()) return {.wrong = absl::StrCat("that of ", NameOf(found->first), " is not fetched")};
  if (GoesBack(op.kind)) {
    slots_[input.slot] = {.freed = at};
    inputs_.erase(found);
  }
  return {.follows = {input.fetched}};
}

std::optional<std::string> InputRules::Take(const Op& op, std::vector<Slot>& slots,
                                            std::vector<int32_t>& slot_of) const {
  if (op.slot < 0) return "has no slot";
  const Key key(op.unit, op.microbatch);
  int32_t& its = slot_of[static_cast<size_t>(op.unit)];
  if (its < 0) its = op.slot;
  if (its != op.slot) return absl::StrCat(inventory_.units(op.unit).name(), " has another slot elsewhere");
  Slot& slot = slots[op.slot];
  if (slot.owner.has_value()) return absl::StrCat("its slot is still held by ", NameOf(*slot.owner));
  slot.owner = key;
  return std::nullopt;
}

std::optional<std::string> InputRules::Left() const {
  if (inputs_.empty()) return std::nullopt;
  return absl::StrCat("that of ", NameOf(inputs_.begin()->first), " is left in host memory");
}

std::string InputRules::NameOf(const Key& input) const {
  return absl::StrCat(inventory_.units(input.first).name(), " m", input.second);
}

}  // namespace muster
