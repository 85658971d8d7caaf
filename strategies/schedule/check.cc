#include "strategies/schedule/check.h"

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

// Walks the ops once in issue order, keeping what is true at that point.
class Checker {
 public:
  Checker(const Schedule& schedule, const Inventory& inventory)
      : schedule_(schedule),
        inventory_(inventory),
        units_(inventory.units_size()),
        forwarded_(schedule.microbatches, 0),
        backward_left_(schedule.microbatches, units_) {
    for (const Op& op : schedule.ops) {
      if (op.kind == OpKind::kGather) ever_gathered_.insert(op.unit);
      if (op.kind == OpKind::kReduce) reduces_ = true;
    }
  }

  absl::Status Run() {
    for (at_ = 0; at_ < schedule_.ops.size(); ++at_) {
      const Op& op = schedule_.ops[at_];
      if (absl::Status s = CheckIndices(op); !s.ok()) return s;
      if (absl::Status s = CheckOp(op); !s.ok()) return s;
    }
    return CheckEnd();
  }

 private:
  absl::Status Wrong(const std::string& rule, const std::string& what) const {
    const std::string where =
        at_ < schedule_.ops.size() ? absl::StrCat("op ", at_, " (", Print(schedule_.ops[at_], inventory_), ")") : "end";
    return absl::InternalError(absl::StrCat("schedule: ", where, ": ", rule, ": ", what));
  }

  absl::Status CheckIndices(const Op& op) const {
    const bool per_unit = op.kind == OpKind::kGather || op.kind == OpKind::kForward || op.kind == OpKind::kBackward ||
                          op.kind == OpKind::kRecompute || op.kind == OpKind::kRelease || op.kind == OpKind::kReduce;
    const bool per_microbatch =
        op.kind == OpKind::kForward || op.kind == OpKind::kBackward || op.kind == OpKind::kRecompute;
    if (per_unit && (op.unit < 0 || op.unit >= units_)) return Wrong("indices", "no such unit");
    if (op.kind == OpKind::kReduce && (op.unit_end <= op.unit || op.unit_end > units_)) {
      return Wrong("indices", "empty or too long a range of units");
    }
    if (per_microbatch && (op.microbatch < 0 || op.microbatch >= schedule_.microbatches)) {
      return Wrong("indices", "no such microbatch");
    }
    if (op.unit < -1 || op.unit >= units_) return Wrong("indices", "no such unit");
    if (op.slot < -1 || op.slot >= schedule_.slots) return Wrong("indices", "no such slot");
    for (const int32_t w : op.waits) {
      if (w < 0 || static_cast<size_t>(w) >= at_) return Wrong("indices", "waits for an op that is not before it");
    }
    return absl::OkStatus();
  }

  absl::Status CheckOp(const Op& op) {
    if (stepped_ && op.kind != OpKind::kSnapshot && op.kind != OpKind::kGather && op.kind != OpKind::kRelease) {
      return Wrong("step", "comes after the optimizer's step");
    }
    switch (op.kind) {
      case OpKind::kGather:
        return Gather(op);
      case OpKind::kRelease:
        return Release(op);
      case OpKind::kForward:
        return Forward(op);
      case OpKind::kRecompute:
        if (op.unit >= forwarded_[op.microbatch]) return Wrong("order", "recomputed before its forward");
        if (op.unit >= backward_left_[op.microbatch]) return Wrong("order", "recomputed after its backward");
        return Resident(op.unit);
      case OpKind::kBackward:
        return Backward(op);
      case OpKind::kReduce:
        return Reduce(op);
      case OpKind::kClipGradients:
        if (!backward_done_everywhere()) return Wrong("step", "clips before the last backward");
        return absl::OkStatus();
      case OpKind::kOptimizerStep:
        if (!backward_done_everywhere()) return Wrong("step", "steps before the last backward");
        if (reduces_ && !pending_.empty()) return Wrong("reduction", Unreduced());
        stepped_ = true;
        return absl::OkStatus();
      default:
        return absl::OkStatus();
    }
  }

  absl::Status Gather(const Op& op) {
    if (gathered_.contains(op.unit)) return Wrong("resident", "gathered twice");
    if (op.slot >= 0) {
      const auto [owner, free] = slot_owner_.emplace(op.slot, op.unit);
      if (!free) return Wrong("slots", absl::StrCat("still held by ", inventory_.units(owner->second).name()));
    }
    gathered_[op.unit] = op.slot;
    return absl::OkStatus();
  }

  absl::Status Release(const Op& op) {
    const auto found = gathered_.find(op.unit);
    if (found == gathered_.end()) return Wrong("resident", "released, but not gathered");
    if (found->second >= 0) slot_owner_.erase(found->second);
    gathered_.erase(found);
    return absl::OkStatus();
  }

  // Whose parameters a unit uses: its own, and those that it borrows.
  std::set<int32_t> Owners(int32_t unit) const {
    std::set<int32_t> owners = {unit};
    for (const Borrow& borrow : inventory_.units(unit).borrows()) {
      for (int32_t u = 0; u < units_; ++u) {
        if (inventory_.units(u).name() == borrow.unit()) owners.insert(u);
      }
    }
    return owners;
  }

  absl::Status Resident(int32_t unit) const {
    for (const int32_t u : Owners(unit)) {
      if (ever_gathered_.contains(u) && !gathered_.contains(u)) {
        return Wrong("resident", absl::StrCat("the parameters of ", inventory_.units(u).name(), " are not gathered"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Forward(const Op& op) {
    if (op.unit != forwarded_[op.microbatch]) return Wrong("order", "forward out of order, or twice");
    ++forwarded_[op.microbatch];
    return Resident(op.unit);
  }

  absl::Status Backward(const Op& op) {
    if (op.unit >= forwarded_[op.microbatch]) return Wrong("order", "backward before its forward");
    if (op.unit != backward_left_[op.microbatch] - 1) return Wrong("order", "backward out of order, or twice");
    --backward_left_[op.microbatch];
    for (const int32_t owner : Owners(op.unit)) pending_.insert({owner, op.unit, op.microbatch});
    return Resident(op.unit);
  }

  absl::Status Reduce(const Op& op) {
    for (int32_t owner = op.unit; owner < op.unit_end; ++owner) {
      const auto first = pending_.lower_bound({owner, -1, -1}), last = pending_.lower_bound({owner + 1, -1, -1});
      if (first == last) {
        return Wrong("reduction", absl::StrCat("there is nothing to reduce of ", inventory_.units(owner).name(),
                                               ": not computed yet, or reduced already"));
      }
      pending_.erase(first, last);
    }
    return absl::OkStatus();
  }

  bool backward_done_everywhere() const {
    for (const int32_t left : backward_left_) {
      if (left != 0) return false;
    }
    return true;
  }

  std::string Unreduced() const {
    const auto& [owner, user, microbatch] = *pending_.begin();
    return absl::StrCat("the gradient of ", inventory_.units(owner).name(), " from ", inventory_.units(user).name(),
                        " m", microbatch, " enters none");
  }

  absl::Status CheckEnd() const {
    if (!backward_done_everywhere()) return Wrong("order", "a backward is missing");
    if (reduces_ && !pending_.empty()) return Wrong("reduction", Unreduced());
    if (!gathered_.empty()) {
      return Wrong("resident", absl::StrCat(inventory_.units(gathered_.begin()->first).name(), " is left gathered"));
    }
    if (!stepped_) return Wrong("step", "no optimizer step");
    return absl::OkStatus();
  }

  const Schedule& schedule_;
  const Inventory& inventory_;
  const int32_t units_;
  size_t at_ = 0;
  std::set<int32_t> ever_gathered_;
  bool reduces_ = false;
  bool stepped_ = false;
  std::map<int32_t, int32_t> gathered_;                      // unit -> slot
  std::map<int32_t, int32_t> slot_owner_;                    // slot -> unit
  std::vector<int32_t> forwarded_;                           // by microbatch: units forwarded
  std::vector<int32_t> backward_left_;                       // by microbatch: units still to go back
  std::set<std::tuple<int32_t, int32_t, int32_t>> pending_;  // (owner, user, microbatch) in no reduction yet
};

}  // namespace

absl::Status Check(const Schedule& schedule, const Inventory& inventory) {
  if (schedule.microbatches < 1) return absl::InternalError("schedule: no microbatch");
  return Checker(schedule, inventory).Run();
}

}  // namespace muster
