#include "strategies/schedule/check.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/sha256.h"
#include "models/inventory.h"
#include "strategies/schedule/chunks.h"
#include "strategies/schedule/edge_rules.h"
#include "strategies/schedule/input_rules.h"

namespace muster {
namespace {

using Clock = std::array<int32_t, kStreams>;

// A clock for each op, with the streams alone that the schedule uses: large schedules have millions of ops.
class Clocks {
 public:
  explicit Clocks(const Schedule& schedule) {
    column_.fill(-1);
    for (const Op& op : schedule.ops) {
      int32_t& column = column_[static_cast<size_t>(op.stream)];
      if (column < 0) column = columns_++;
    }
    values_.resize(schedule.ops.size() * static_cast<size_t>(columns_));
  }
  Clock operator[](size_t op) const {
    Clock clock{};
    for (size_t s = 0; s < kStreams; ++s) {
      if (column_[s] >= 0) clock[s] = values_[Place(op, s)];
    }
    return clock;
  }
  void Set(size_t op, const Clock& clock) {
    for (size_t s = 0; s < kStreams; ++s) {
      if (column_[s] >= 0) values_[Place(op, s)] = clock[s];
    }
  }

 private:
  size_t Place(size_t op, size_t stream) const {
    return op * static_cast<size_t>(columns_) + static_cast<size_t>(column_[stream]);
  }

  std::array<int32_t, kStreams> column_{};  // by stream; -1: it is not used
  int32_t columns_ = 0;
  std::vector<int32_t> values_;
};

// By unit: the units whose parameters it uses: its own, and those that it borrows.
std::vector<std::vector<int32_t>> ParametersUsedBy(const Inventory& inventory) {
  std::map<std::string, int32_t> by_name;
  for (int32_t u = 0; u < inventory.units_size(); ++u) by_name[inventory.units(u).name()] = u;
  std::vector<std::vector<int32_t>> owners;
  for (int32_t u = 0; u < inventory.units_size(); ++u) {
    std::set<int32_t> its = {u};
    for (const Borrow& borrow : inventory.units(u).borrows()) {
      if (const auto found = by_name.find(borrow.unit()); found != by_name.end()) its.insert(found->second);
    }
    owners.emplace_back(its.begin(), its.end());
  }
  return owners;
}

bool ChangesInSteps(const Unit& unit) {
  return std::any_of(unit.tensors().begin(), unit.tensors().end(), [](const Tensor& t) { return !t.frozen(); });
}

struct SlotState {
  int32_t owner = -1;     // the first unit that holds it; -1: none
  int64_t freed_at = -1;  // the op; -1: it was never held
};

// That a backward adds to an owner's gradient.
struct Contribution {
  int32_t user;
  int32_t microbatch;
  size_t at;  // the op
};

// Walks the ops once in issue order, keeping what is true at that point.
class Checker {
 public:
  Checker(const Schedule& schedule, const Inventory& inventory)
      : schedule_(schedule),
        inventory_(inventory),
        units_(inventory.units_size()),
        first_(models::FirstTrained(inventory)),
        has_loss_(ChunksOf(inventory).back().last),
        ever_gathered_(units_),
        ever_between_(units_),
        ever_fetched_(units_),
        ever_opened_(units_),
        owners_(ParametersUsedBy(inventory)),
        ended_(schedule),
        gathered_at_(units_),
        fetched_at_(units_),
        opened_at_(units_),
        between_at_(units_),
        inside_at_(units_),
        scattered_at_(units_),
        reduced_at_(units_),
        all_reduced_at_(units_),
        half_summed_at_(units_),
        stepped_at_(units_),
        not_offloaded_(units_),
        outdated_(units_),
        slot_of_(units_),
        gradient_slot_of_(units_),
        slots_(static_cast<size_t>(std::max(0, schedule.slots))),
        gradient_slots_(static_cast<size_t>(std::max(0, schedule.gradient_slots))),
        forwarded_(schedule.microbatches, 0),
        backward_left_(schedule.microbatches, units_),
        deferred_(units_),
        used_(units_),
        pending_(units_),
        inputs_(schedule, inventory),
        edges_(schedule, inventory) {
    // A unit without tensors takes part like one that is trained: its backward may be all that there is.
    for (int32_t u = 0; u < units_; ++u) {
      const Unit& unit = inventory.units(u);
      trained_.push_back(ChangesInSteps(unit) || (u >= first_ && unit.tensors().empty()));
    }
    for (const Op& op : schedule.ops) {
      const OpTraits& traits = Traits(op.kind);
      for (int32_t u = std::max(0, op.unit); u < std::min(op.unit_end, units_); ++u) {
        if (traits.parameters == ParameterUse::kGather) ever_gathered_[u] = true;
        if (traits.parameters == ParameterUse::kGatherBetween) ever_between_[u] = true;
        if (traits.parameters == ParameterUse::kFetch && op.slot >= 0) ever_fetched_[u] = true;
        if (traits.gradients == GradientUse::kOpen) ever_opened_[u] = true;
      }
      reduces_ |= traits.gradients == GradientUse::kReduce;
      const bool to_owners = traits.gradients == GradientUse::kReduce || traits.gradients == GradientUse::kReduceInside;
      if (to_owners) reduced_axes_ = static_cast<Axes>(reduced_axes_ | AxesOf(op.group));
      all_reduces_ |= traits.gradients == GradientUse::kAllReduce;
      offloads_ |= traits.gradients == GradientUse::kOffload;
      trains_ |= GoesBack(op.kind) || traits.gradients == GradientUse::kApply;
    }
  }

  absl::Status Run() {
    for (at_ = 0; at_ < schedule_.ops.size(); ++at_) {
      const Op& op = schedule_.ops[at_];
      if (absl::Status s = CheckIndices(op); !s.ok()) return s;
      Order(op);
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

  int32_t SlotsOf(SlotPool pool) const {
    switch (pool) {
      case SlotPool::kNone:
        break;
      case SlotPool::kParameters:
        return schedule_.slots;
      case SlotPool::kGradients:
        return schedule_.gradient_slots;
      case SlotPool::kInputs:
        return schedule_.input_slots;
      case SlotPool::kHostInputs:
        return schedule_.host_input_slots;
      case SlotPool::kActivations:
        return schedule_.activation_slots;
    }
    return 0;
  }

  absl::Status CheckIndices(const Op& op) const {
    const OpTraits& traits = Traits(op.kind);
    if (op.unit < (traits.scope == OpScope::kStep ? -1 : 0) || op.unit >= units_) {
      return Wrong("indices", "no such unit");
    }
    const bool ranges = traits.scope == OpScope::kUnits || (traits.scope == OpScope::kStep && op.unit >= 0);
    if (ranges && (op.unit_end <= op.unit || op.unit_end > units_)) {
      return Wrong("indices", "empty or too long a range of units");
    }
    if (traits.scope == OpScope::kMicrobatch && (op.microbatch < 0 || op.microbatch >= schedule_.microbatches)) {
      return Wrong("indices", "no such microbatch");
    }
    if (op.slot < -1 || op.slot >= SlotsOf(traits.slots)) return Wrong("indices", "no such slot");
    for (const int32_t w : op.waits) {
      if (w < 0 || static_cast<size_t>(w) >= at_) return Wrong("indices", "waits for an op that is not before it");
    }
    if (op.group < 0 && traits.group == GroupUse::kRequired) return Wrong("groups", "a collective needs a group");
    if (op.group >= 0 && traits.group == GroupUse::kNone) return Wrong("groups", "is not a collective");
    if (op.group >= static_cast<int32_t>(schedule_.groups.size()) || op.group < -1) {
      return Wrong("groups", "no such group");
    }
    if (traits.pass == Pass::kNone) return absl::OkStatus();
    const int32_t group = traits.group == GroupUse::kNone ? -1 : ExchangeGroupOf(inventory_.units(op.unit));
    if (op.group == group) return absl::OkStatus();
    return Wrong("groups", group >= 0 ? "the unit exchanges with other ranks, and has not their group"
                                      : "the unit exchanges nothing");
  }

  // Of all ranks with which the unit's passes exchange; -1: with none.
  int32_t ExchangeGroupOf(const Unit& unit) const {
    if (unit.has_context_exchange()) return unit.has_tensor_exchange() ? kContextTensorGroup : kContextGroup;
    if (unit.has_tensor_exchange()) return kTensorGroup;
    return (reduces_ || all_reduces_) && unit.has_exchange() ? kExchangeGroup : -1;
  }

  // Vector clocks: for each stream, up to which op its ops are known to be done. Ops of a stream end in their order;
  // only those that compute also begin in it (worker/engine/queue.h).
  void Order(const Op& op) {
    const size_t stream = static_cast<size_t>(op.stream);
    const auto join = [](Clock& clock, const Clock& other) {
      for (size_t s = 0; s < kStreams; ++s) clock[s] = std::max(clock[s], other[s]);
    };
    begun_ = op.stream == Stream::kCompute ? last_[stream] : Clock{};
    for (const int32_t w : op.waits) join(begun_, ended_[w]);
    join(last_[stream], begun_);
    last_[stream][stream] = static_cast<int32_t>(at_) + 1;
    ended_.Set(at_, last_[stream]);
  }
  // Whether op `earlier` is done when the current one begins.
  bool After(size_t earlier) const {
    return begun_[static_cast<size_t>(schedule_.ops[earlier].stream)] > static_cast<int32_t>(earlier);
  }
  absl::Status MustFollow(size_t earlier) const {
    if (After(earlier)) return absl::OkStatus();
    return Wrong("streams",
                 absl::StrCat("does not wait for op ", earlier, " (", Print(schedule_.ops[earlier], inventory_), ")"));
  }
  absl::Status MustFollowAll(const std::vector<size_t>& earlier) const {
    for (const size_t op : earlier) {
      if (absl::Status s = MustFollow(op); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status CheckOp(const Op& op) {
    const OpTraits& traits = Traits(op.kind);
    const bool steps_a_part = traits.gradients == GradientUse::kApply && op.unit >= 0;
    if (stepped_ && !traits.after_step && !steps_a_part) {
      return Wrong("step", "comes after the optimizer's step");
    }
    if (absl::Status s = CheckPass(op, traits.pass); !s.ok()) return s;
    if (absl::Status s = CheckGradients(op, traits.gradients); !s.ok()) return s;
    if (absl::Status s = CheckScalars(op, traits); !s.ok()) return s;
    if (absl::Status s = CheckInputs(op); !s.ok()) return s;
    if (absl::Status s = CheckEdges(op); !s.ok()) return s;
    return CheckParameters(op, traits.parameters);
  }

  absl::Status CheckEdges(const Op& op) {
    const EdgeRules::Finding found = edges_.Run(op, at_);
    if (found.wrong.has_value()) return Wrong("edges", *found.wrong);
    if (Traits(op.kind).edge == EdgeUse::kSendTiedGradient) sent_.push_back(at_);
    return MustFollowAll(found.follows);
  }

  absl::Status CheckInputs(const Op& op) {
    const InputRules::Finding found = inputs_.Run(op, at_);
    if (found.wrong.has_value()) return Wrong("inputs", *found.wrong);
    for (const std::optional<size_t>& earlier : found.follows) {
      if (!earlier.has_value()) continue;
      if (absl::Status s = MustFollow(*earlier); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status CheckScalars(const Op& op, const OpTraits& traits) {
    if (traits.pass != Pass::kNone && has_loss_ && op.unit + 1 == units_) losses_.push_back(at_);
    switch (traits.scalars) {
      case ScalarUse::kNone:
        break;
      case ScalarUse::kSum:
        if (summed_at_.has_value()) return Wrong("scalars", "summed twice");
        for (const int32_t left : backward_left_) {
          if (has_loss_ && left == units_) return Wrong("scalars", "summed before the last loss");
        }
        summed_at_ = at_;
        return MustFollowAll(losses_);
      case ScalarUse::kRead:
        if (!SumsScalars()) break;
        if (!summed_at_.has_value()) return Wrong("scalars", "read before their sum over ranks");
        return MustFollow(*summed_at_);
    }
    return absl::OkStatus();
  }

  absl::Status CheckPass(const Op& op, Pass pass) {
    const bool back = pass == Pass::kRecompute || GoesBack(op.kind);
    if (back && op.unit < first_) return Wrong("order", "neither the unit nor one before it is trained");
    switch (pass) {
      case Pass::kNone:
        break;
      case Pass::kForward:
        if (op.unit != forwarded_[op.microbatch]) return Wrong("order", "forward out of order, or twice");
        ++forwarded_[op.microbatch];
        break;
      case Pass::kRecompute:
        if (op.unit >= forwarded_[op.microbatch]) return Wrong("order", "recomputed before its forward");
        if (op.unit >= backward_left_[op.microbatch]) return Wrong("order", "recomputed after its backward");
        break;
      case Pass::kBackward:
      case Pass::kBackwardInputs:
        if (op.unit >= forwarded_[op.microbatch]) return Wrong("order", "backward before its forward");
        if (op.unit != backward_left_[op.microbatch] - 1) return Wrong("order", "backward out of order, or twice");
        --backward_left_[op.microbatch];
        if (pass == Pass::kBackwardInputs) deferred_[op.unit].insert(op.microbatch);
        break;
      case Pass::kBackwardWeights:
        if (deferred_[op.unit].erase(op.microbatch) > 0) break;
        return Wrong("order", "gradients of parameters before that of the unit's input, or twice");
    }
    return absl::OkStatus();
  }

  absl::Status CheckGradients(const Op& op, GradientUse use) {
    switch (use) {
      case GradientUse::kNone:
        break;
      case GradientUse::kOpen:
        return OpenGradients(op);
      case GradientUse::kAdd:
        return AddGradients(op);
      case GradientUse::kAddTied:
        return AddTied(op);
      case GradientUse::kReduceInside:
        return ReduceInside(op);
      case GradientUse::kReduce:
        return Reduce(op);
      case GradientUse::kScatter:
        return Scatter(op);
      case GradientUse::kAllReduce:
        for (int32_t owner = op.unit; owner < op.unit_end && schedule_.two_exchanges; ++owner) {
          half_summed_at_[owner] = at_;
        }
        if (AxesOf(op.group) == kReplicasBetween) return AllReduceParts(op);
        return reduces_ ? AllReduceOwned(op) : Reduce(op);
      case GradientUse::kFinishSum:
        return FinishSum(op);
      case GradientUse::kGather:
        return GatherSums(op);
      case GradientUse::kOffload:
        return Offload(op);
      case GradientUse::kMeasure:
        if (!backward_done_everywhere() || Deferred()) return Wrong("step", "clips before the last backward");
        if (NotOffloaded()) return Wrong("offload", *NotOffloaded());
        clipped_ = true;
        right_norm_ = IsRightNorm(op.group);
        if (const auto half = HalfSummed(0, units_); half.has_value()) return Wrong("reduction", *half);
        return FollowGradients();
      case GradientUse::kApply:
        // No op that may come between the steps of two parts changes this.
        if (absl::Status s = stepped_ ? absl::OkStatus() : MayStep(); !s.ok()) return s;
        if (absl::Status s = MustFollowAll(sent_); !s.ok()) return s;
        if (absl::Status s = Step(op); !s.ok()) return s;
        return FollowGradients();
    }
    return absl::OkStatus();
  }

  absl::Status CheckParameters(const Op& op, ParameterUse use) {
    switch (use) {
      case ParameterUse::kNone:
        break;
      case ParameterUse::kGatherBetween:
        return GatherBetween(op);
      case ParameterUse::kGather:
        return Gather(op);
      case ParameterUse::kFetch:
        return op.slot >= 0 ? Fetch(op) : FetchUpdated(op);
      case ParameterUse::kRead:
        return Use(op.unit);
      case ParameterUse::kSend:
        sent_.push_back(at_);
        return UseOwn(op.unit);
      case ParameterUse::kReadIfBackwardDoes:
        return inventory_.units(op.unit).backward_without_parameters() ? absl::OkStatus() : Use(op.unit);
      case ParameterUse::kRelease:
        return Release(op);
    }
    return absl::OkStatus();
  }

  // Takes the slot for units [unit, unit_end).
  absl::Status Take(const Op& op, std::vector<SlotState>& slots, std::vector<std::optional<int32_t>>& slot_of) {
    for (int32_t u = op.unit; u < op.unit_end; ++u) {
      if (!slot_of[u].has_value()) slot_of[u] = op.slot;
      if (*slot_of[u] != op.slot) {
        return Wrong("slots", absl::StrCat(inventory_.units(u).name(), " has another one elsewhere"));
      }
    }
    if (op.slot < 0) return absl::OkStatus();
    SlotState& slot = slots[op.slot];
    if (slot.owner >= 0) return Wrong("slots", absl::StrCat("still held by ", inventory_.units(slot.owner).name()));
    slot.owner = op.unit;
    return slot.freed_at >= 0 ? MustFollow(static_cast<size_t>(slot.freed_at)) : absl::OkStatus();
  }

  // What other nodes' ranks own, into the slot that Gather completes.
  absl::Status GatherBetween(const Op& op) {
    if (AxesOf(op.group) != kShardsBetween) return Wrong("groups", "not the ranks of one place in their nodes");
    for (int32_t u = op.unit; u < op.unit_end; ++u) {
      if (gathered_at_[u].has_value() || between_at_[u].has_value()) return Wrong("resident", "gathered twice");
      between_at_[u] = at_;
    }
    return ever_fetched_[op.unit] ? FollowFetches(op) : Take(op, slots_, slot_of_);
  }

  absl::Status Gather(const Op& op) {
    const bool inside = AxesOf(op.group) == kShardsInside;
    for (int32_t u = op.unit; u < op.unit_end; ++u) {
      if (gathered_at_[u].has_value()) return Wrong("resident", "gathered twice");
      gathered_at_[u] = at_;
      if (inside != ever_between_[u]) return Wrong("groups", "gathered within nodes, but not between them");
      if (!inside) continue;
      const Op* const between = between_at_[u].has_value() ? &schedule_.ops[*between_at_[u]] : nullptr;
      if (between == nullptr || between->slot != op.slot || between->unit != op.unit ||
          between->unit_end != op.unit_end) {
        return Wrong("resident", "gathers inside not what was gathered between nodes");
      }
      if (absl::Status s = MustFollow(*between_at_[u]); !s.ok()) return s;
      between_at_[u].reset();
    }
    if (inside) return absl::OkStatus();
    return ever_fetched_[op.unit] ? FollowFetches(op) : Take(op, slots_, slot_of_);
  }

  absl::Status FollowFetches(const Op& op) {
    for (int32_t u = op.unit; u < op.unit_end; ++u) {
      if (!fetched_at_[u].has_value()) {
        return Wrong("resident",
                     absl::StrCat("what this rank owns of ", inventory_.units(u).name(), " is not fetched"));
      }
      const Op& fetch = schedule_.ops[*fetched_at_[u]];
      if (fetch.slot != op.slot || fetch.unit != op.unit || fetch.unit_end != op.unit_end) {
        return Wrong("resident", "gathers not what was fetched together");
      }
      if (absl::Status s = MustFollow(*fetched_at_[u]); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status Fetch(const Op& op) {
    for (int32_t u = op.unit; u < op.unit_end; ++u) {
      if (fetched_at_[u].has_value()) return Wrong("resident", "fetched twice");
      fetched_at_[u] = at_;
      if (!ever_gathered_[u]) gathered_at_[u] = at_;
    }
    return Take(op, slots_, slot_of_);
  }

  // What the device keeps, after the step on the host.
  absl::Status FetchUpdated(const Op& op) {
    for (int32_t u = op.unit; u < op.unit_end; ++u) {
      if (ever_fetched_[u])
        return Wrong("slots", absl::StrCat(inventory_.units(u).name(), " has another one elsewhere"));
      if (!stepped_at_[u].has_value()) return Wrong("resident", "fetched without a slot before its step");
      if (absl::Status s = MustFollow(*stepped_at_[u]); !s.ok()) return s;
      outdated_[u] = false;
    }
    return absl::OkStatus();
  }

  absl::Status Release(const Op& op) {
    for (int32_t u = op.unit; u < op.unit_end; ++u) {
      if (!gathered_at_[u].has_value()) return Wrong("resident", "released, but not gathered");
      const Op& gather = schedule_.ops[*gathered_at_[u]];
      if (gather.unit != op.unit || gather.unit_end != op.unit_end) {
        return Wrong("resident", "releases not what was gathered together");
      }
      if (absl::Status s = MustFollow(*gathered_at_[u]); !s.ok()) return s;
      if (absl::Status s = MustFollowAll(used_[u]); !s.ok()) return s;
      used_[u].clear();
      if (gather.slot >= 0) slots_[gather.slot] = {-1, static_cast<int64_t>(at_)};
      gathered_at_[u].reset(), fetched_at_[u].reset();
    }
    return absl::OkStatus();
  }

  absl::Status OpenGradients(const Op& op) {
    for (int32_t u = op.unit; u < op.unit_end; ++u) {
      if (opened_at_[u].has_value()) return Wrong("gradients", "opened twice");
      opened_at_[u] = at_;
    }
    return Take(op, gradient_slots_, gradient_slot_of_);
  }

  // The op reads the unit's parameters, and those that it borrows.
  absl::Status Use(int32_t unit) {
    for (const int32_t u : owners_[unit]) {
      if (absl::Status s = UseOwn(u); !s.ok()) return s;
    }
    return absl::OkStatus();
  }
  absl::Status UseOwn(int32_t u) {
    if (!ever_gathered_[u] && !ever_fetched_[u]) return absl::OkStatus();
    if (!gathered_at_[u].has_value()) {
      return Wrong("resident", absl::StrCat("the parameters of ", inventory_.units(u).name(), " are not gathered"));
    }
    if (absl::Status s = MustFollow(*gathered_at_[u]); !s.ok()) return s;
    used_[u].push_back(at_);
    return absl::OkStatus();
  }

  // What another stage's units contribute, once a step: to the gradient that is complete but for that.
  absl::Status AddTied(const Op& op) {
    if (!backward_done_everywhere(op.unit) || !deferred_[op.unit].empty())
      return Wrong("tied", "added before the unit's last backward");
    for (const Contribution& contribution : pending_[op.unit]) {
      if (absl::Status s = MustFollow(contribution.at); !s.ok()) return s;
    }
    pending_[op.unit].push_back({op.unit, -1, at_});
    if (!Distributed() && !offloads_) CompletesGradients();
    if (!ever_opened_[op.unit]) return absl::OkStatus();
    if (!opened_at_[op.unit].has_value()) return Wrong("gradients", "those of the unit are not open");
    return MustFollow(*opened_at_[op.unit]);
  }

  absl::Status AddGradients(const Op& op) {
    for (const int32_t owner : owners_[op.unit]) {
      if (!trained_[owner]) continue;
      if (inside_at_[owner].has_value() || scattered_at_[owner].has_value()) {
        return Wrong("reduction",
                     absl::StrCat("the gradient of ", inventory_.units(owner).name(), " is being reduced"));
      }
      pending_[owner].push_back({op.unit, op.microbatch, at_});
      if (!ever_opened_[owner]) continue;
      if (!opened_at_[owner].has_value()) {
        return Wrong("gradients", absl::StrCat("those of ", inventory_.units(owner).name(), " are not open"));
      }
      if (absl::Status s = MustFollow(*opened_at_[owner]); !s.ok()) return s;
    }
    if (!Distributed() && !offloads_) CompletesGradients();
    return absl::OkStatus();
  }

  bool Distributed() const { return reduces_ || all_reduces_; }
  bool SumsScalars() const { return Distributed() || !schedule_.edges.empty() || models::IsShare(inventory_); }

  Axes AxesOf(int32_t group) const { return muster::AxesOf(schedule_, group); }
  // Over all ranks that have a part of the gradient: those that it is reduced to, on all stages.
  bool IsRightNorm(int32_t group) const {
    if (!reduces_ && schedule_.edges.empty() && !models::IsShare(inventory_)) return group < 0;
    const Axes all = reduces_ ? static_cast<Axes>(reduced_axes_ | kPipelineAxis | kTensorAxis) : kModelAxes;
    return AxesOf(group) == all;
  }
  // A slot is free after its gradients are in host memory, unless they are also summed over replicas, which is once a
  // step.
  bool OffloadsSlots() const { return offloads_ && !(reduces_ && all_reduces_); }

  // Everything that was added to the unit's gradient enters this sum.
  absl::Status SumContributions(int32_t owner) {
    if (trained_[owner] && pending_[owner].empty()) {
      return Wrong("reduction", absl::StrCat("there is nothing to reduce of ", inventory_.units(owner).name(),
                                             ": not computed yet, or reduced already"));
    }
    for (const Contribution& contribution : pending_[owner]) {
      if (absl::Status s = MustFollow(contribution.at); !s.ok()) return s;
    }
    pending_[owner].clear();
    return absl::OkStatus();
  }

  absl::Status ReduceInside(const Op& op) {
    if (AxesOf(op.group) != kShardsInside) return Wrong("groups", "not the ranks of a node");
    for (int32_t owner = op.unit; owner < op.unit_end; ++owner) {
      if (inside_at_[owner].has_value()) return Wrong("reduction", "reduced inside nodes twice");
      if (absl::Status s = SumContributions(owner); !s.ok()) return s;
      inside_at_[owner] = at_;
    }
    return absl::OkStatus();
  }

  // Of what the replicas of a node sum, a part at each of them.
  absl::Status Scatter(const Op& op) {
    if (AxesOf(op.group) != kReplicasInside) return Wrong("groups", "not the replicas of a node");
    for (int32_t owner = op.unit; owner < op.unit_end; ++owner) {
      const std::string& name = inventory_.units(owner).name();
      if (scattered_at_[owner].has_value() || all_reduced_at_[owner].has_value()) {
        return Wrong("reduction", absl::StrCat(name, " comes twice"));
      }
      if (!reduces_) {
        if (absl::Status s = SumContributions(owner); !s.ok()) return s;
      } else if (!reduced_at_[owner].has_value()) {
        return Wrong("reduction", absl::StrCat(name, " is not reduced to its owners"));
      } else if (absl::Status s = MustFollow(*reduced_at_[owner]); !s.ok()) {
        return s;
      }
      scattered_at_[owner] = at_;
    }
    return absl::OkStatus();
  }
  absl::Status AllReduceParts(const Op& op) {
    for (int32_t owner = op.unit; owner < op.unit_end; ++owner) {
      if (!scattered_at_[owner].has_value() || all_reduced_at_[owner].has_value()) {
        return Wrong("reduction",
                     absl::StrCat(inventory_.units(owner).name(), " is not scattered over its node, or comes twice"));
      }
      if (absl::Status s = MustFollow(*scattered_at_[owner]); !s.ok()) return s;
      all_reduced_at_[owner] = at_;
    }
    return absl::OkStatus();
  }
  // Its exchanges are those of the sum that it completes.
  absl::Status FinishSum(const Op& op) {
    for (int32_t owner = op.unit; owner < op.unit_end; ++owner) {
      const std::optional<size_t> half = std::exchange(half_summed_at_[owner], std::nullopt);
      const Op* const begun = half.has_value() ? &schedule_.ops[*half] : nullptr;
      if (begun == nullptr || begun->group != op.group || begun->unit != op.unit || begun->unit_end != op.unit_end) {
        return Wrong("reduction", absl::StrCat(inventory_.units(owner).name(), " has no such sum to finish"));
      }
      if (absl::Status s = MustFollow(*half); !s.ok()) return s;
      all_reduced_at_[owner] = at_;
      if (!reduces_ && AxesOf(op.group) != kReplicasBetween) reduced_at_[owner] = at_;
    }
    CompletesGradients();
    return absl::OkStatus();
  }
  std::optional<std::string> HalfSummed(int32_t begin, int32_t end) const {
    for (int32_t u = begin; u < end; ++u) {
      if (half_summed_at_[u].has_value())
        return absl::StrCat("the sum of ", inventory_.units(u).name(), " is not finished");
    }
    return std::nullopt;
  }

  absl::Status GatherSums(const Op& op) {
    if (const auto half = HalfSummed(op.unit, op.unit_end); half.has_value()) return Wrong("reduction", *half);
    if (AxesOf(op.group) != kReplicasInside) return Wrong("groups", "not the replicas of a node");
    for (int32_t owner = op.unit; owner < op.unit_end; ++owner) {
      if (!scattered_at_[owner].has_value() || !all_reduced_at_[owner].has_value()) {
        return Wrong("reduction", absl::StrCat(inventory_.units(owner).name(), " is not summed between nodes"));
      }
      if (absl::Status s = MustFollow(*all_reduced_at_[owner]); !s.ok()) return s;
      scattered_at_[owner].reset();
      all_reduced_at_[owner] = at_;
      if (!reduces_) reduced_at_[owner] = at_;
      not_offloaded_[owner] = offloads_;
    }
    CompletesGradients();
    return absl::OkStatus();
  }

  absl::Status Reduce(const Op& op) {
    const bool between = AxesOf(op.group) == kShardsBetween;
    for (int32_t owner = op.unit; owner < op.unit_end; ++owner) {
      const std::string& name = inventory_.units(owner).name();
      if (Traits(op.kind).gradients == GradientUse::kReduce && all_reduced_at_[owner].has_value()) {
        return Wrong("reduction", absl::StrCat(name, " has been summed over replicas"));
      }
      if (between != inside_at_[owner].has_value()) {
        return Wrong("groups", absl::StrCat(name, " is reduced between nodes, or inside them, alone"));
      }
      if (between) {
        if (absl::Status s = MustFollow(*inside_at_[owner]); !s.ok()) return s;
        inside_at_[owner].reset();
      } else if (absl::Status s = SumContributions(owner); !s.ok()) {
        return s;
      }
      if (!ever_opened_[owner] || !OffloadsSlots()) {
        if (absl::Status s = Close(op, owner); !s.ok()) return s;
      }
      reduced_at_[owner] = at_;
      not_offloaded_[owner] = offloads_;
    }
    CompletesGradients();
    return absl::OkStatus();
  }

  absl::Status Offload(const Op& op) {
    if (const auto half = HalfSummed(op.unit, op.unit_end); half.has_value()) return Wrong("reduction", *half);
    for (int32_t owner = op.unit; owner < op.unit_end; ++owner) {
      const std::string& name = inventory_.units(owner).name();
      if (Distributed() && !not_offloaded_[owner] && trained_[owner]) {
        return Wrong("offload", absl::StrCat("nothing of ", name, " was reduced since the last one"));
      }
      if (!Distributed() && pending_[owner].empty() && trained_[owner]) {
        return Wrong("offload", absl::StrCat("there is nothing of ", name));
      }
      for (const Contribution& contribution : pending_[owner]) {
        if (absl::Status s = MustFollow(contribution.at); !s.ok()) return s;
      }
      pending_[owner].clear();
      for (const auto& reduced : {reduced_at_[owner], all_reduced_at_[owner]}) {
        if (!reduced.has_value()) continue;
        if (absl::Status s = MustFollow(*reduced); !s.ok()) return s;
      }
      if (ever_opened_[owner] && OffloadsSlots()) {
        if (absl::Status s = Close(op, owner); !s.ok()) return s;
      }
      not_offloaded_[owner] = false;
    }
    CompletesGradients();
    return absl::OkStatus();
  }

  std::optional<std::string> NotOffloaded() const {
    for (int32_t u = 0; u < units_; ++u) {
      if (not_offloaded_[u])
        return absl::StrCat("the gradient of ", inventory_.units(u).name(), " is in no host memory");
    }
    return std::nullopt;
  }

  absl::Status MayStep() const {
    if (!backward_done_everywhere() || Deferred()) return Wrong("step", "steps before the last backward");
    if (!clipped_) return Wrong("step", "steps without the gradients' norm");
    if (Unreduced()) return Wrong("reduction", *Unreduced());
    if (const auto half = HalfSummed(0, units_); half.has_value()) return Wrong("reduction", *half);
    if (right_norm_) return absl::OkStatus();
    return Wrong("groups", "the norm is not summed over the shards of the gradient, or has none");
  }

  absl::Status Step(const Op& op) {
    if (op.unit >= 0 && !offloads_) return Wrong("step", "of a part, without gradients in host memory");
    for (int32_t u = std::max(0, op.unit); u < (op.unit < 0 ? units_ : op.unit_end); ++u) {
      if (stepped_at_[u].has_value()) return Wrong("step", absl::StrCat(inventory_.units(u).name(), " has stepped"));
      stepped_at_[u] = at_;
      outdated_[u] = offloads_ && !ever_fetched_[u] && ChangesInSteps(inventory_.units(u));
    }
    stepped_ = true;
    return absl::OkStatus();
  }

  // The gradient of `owner` leaves its slot, or must never be reduced again.
  absl::Status Close(const Op& op, int32_t owner) {
    if (!ever_opened_[owner]) {
      if (!reduced_at_[owner].has_value()) return absl::OkStatus();
      return Wrong("reduction", absl::StrCat(inventory_.units(owner).name(), " is in no slot and is reduced again"));
    }
    if (!opened_at_[owner].has_value()) {
      return Wrong("gradients", absl::StrCat("those of ", inventory_.units(owner).name(), " are not open"));
    }
    const Op& open = schedule_.ops[*opened_at_[owner]];
    if (open.unit != op.unit || open.unit_end != op.unit_end) {
      return Wrong("gradients", "reduces not what was opened together");
    }
    if (open.slot >= 0) gradient_slots_[open.slot] = {-1, static_cast<int64_t>(at_)};
    opened_at_[owner].reset();
    return absl::OkStatus();
  }

  absl::Status AllReduceOwned(const Op& op) {
    for (int32_t owner = op.unit; owner < op.unit_end; ++owner) {
      const std::string& name = inventory_.units(owner).name();
      if (all_reduced_at_[owner].has_value()) return Wrong("reduction", absl::StrCat(name, " comes twice"));
      all_reduced_at_[owner] = at_;
      not_offloaded_[owner] = offloads_;
      if (!reduced_at_[owner].has_value())
        return Wrong("reduction", absl::StrCat(name, " is not reduced to its owners"));
      if (absl::Status s = MustFollow(*reduced_at_[owner]); !s.ok()) return s;
    }
    CompletesGradients();
    return absl::OkStatus();
  }

  void CompletesGradients() { gradients_[static_cast<size_t>(schedule_.ops[at_].stream)] = at_; }
  absl::Status FollowGradients() const {
    for (const std::optional<size_t>& last : gradients_) {
      if (!last.has_value()) continue;
      if (absl::Status s = MustFollow(*last); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  // Whether a backward was begun and not completed.
  bool Deferred() const {
    return std::any_of(deferred_.begin(), deferred_.end(), [](const std::set<int32_t>& of) { return !of.empty(); });
  }

  // Of the unit, in all microbatches.
  bool backward_done_everywhere(int32_t unit = 0) const {
    return std::all_of(backward_left_.begin(), backward_left_.end(),
                       [&](int32_t left) { return left <= std::max(unit, first_); });
  }

  std::optional<std::string> Unreduced() const {
    for (int32_t owner = 0; owner < units_; ++owner) {
      if ((!Distributed() && !offloads_) || pending_[owner].empty()) continue;
      const auto first =
          std::min_element(pending_[owner].begin(), pending_[owner].end(), [](const auto& a, const auto& b) {
            return std::pair(a.user, a.microbatch) < std::pair(b.user, b.microbatch);
          });
      return absl::StrCat("the gradient of ", inventory_.units(owner).name(), " from ",
                          inventory_.units(first->user).name(), " m", first->microbatch, " enters none");
    }
    for (int32_t owner = 0; owner < units_; ++owner) {
      if (inside_at_[owner].has_value() || scattered_at_[owner].has_value()) {
        return absl::StrCat(inventory_.units(owner).name(), " is not summed between nodes, or not gathered after it");
      }
      if (reduces_ && all_reduces_ && reduced_at_[owner].has_value() && !all_reduced_at_[owner].has_value()) {
        return absl::StrCat(inventory_.units(owner).name(), " is not summed over replicas");
      }
    }
    return std::nullopt;
  }

  absl::Status CheckEnd() const {
    for (const int32_t forwarded : forwarded_) {
      if (forwarded != units_) return Wrong("order", "a forward is missing");
    }
    for (int32_t u = 0; u < units_; ++u) {
      if (!gathered_at_[u].has_value()) continue;
      return Wrong("resident", absl::StrCat(inventory_.units(u).name(), " is left gathered"));
    }
    if (const std::optional<std::string> left = inputs_.Left()) return Wrong("inputs", *left);
    if (const std::optional<std::string> left = edges_.Left()) return Wrong("edges", *left);
    if (!trains_) return absl::OkStatus();
    if (!backward_done_everywhere() || Deferred()) return Wrong("order", "a backward is missing");
    if (Unreduced()) return Wrong("reduction", *Unreduced());
    if (!stepped_) return Wrong("step", "no optimizer step");
    for (int32_t u = 0; u < units_; ++u) {
      const std::string& name = inventory_.units(u).name();
      if (ChangesInSteps(inventory_.units(u)) && !stepped_at_[u].has_value())
        return Wrong("step", absl::StrCat(name, " has none"));
      if (outdated_[u])
        return Wrong("resident", absl::StrCat("the device has the parameters of ", name, " before the step"));
    }
    return absl::OkStatus();
  }

  const Schedule& schedule_;
  const Inventory& inventory_;
  const int32_t units_;
  const int32_t first_;  // unit: where the backward ends
  const bool has_loss_;  // the model's last unit is here
  size_t at_ = 0;
  std::vector<bool> ever_gathered_, ever_between_, ever_fetched_;  // by unit; the last: into a slot
  std::vector<bool> ever_opened_;                                  // by unit
  const std::vector<std::vector<int32_t>> owners_;                 // by unit
  std::vector<bool> trained_;                                      // by unit: a gradient of its own must come
  bool reduces_ = false, all_reduces_ = false, offloads_ = false, trains_ = false;
  bool clipped_ = false, stepped_ = false;
  bool right_norm_ = false;
  Axes reduced_axes_ = kNoAxis;         // of reductions to owners, all levels
  std::vector<size_t> sent_;            // ops that read what changes with the step, or at the next one's begin
  std::vector<size_t> losses_;          // ops that add to the loss
  std::optional<size_t> summed_at_;     // the sum of the scalars
  Clock begun_{};                       // when the current op begins
  Clocks ended_;                        // by op, when it ends
  std::array<Clock, kStreams> last_{};  // of each stream's last op, when it ends
  std::vector<std::optional<size_t>> gathered_at_, fetched_at_, opened_at_;  // by unit: the op, while it is
  // By unit: the first of two levels, until the last.
  std::vector<std::optional<size_t>> between_at_, inside_at_, scattered_at_;
  std::vector<std::optional<size_t>> reduced_at_, all_reduced_at_, half_summed_at_,
      stepped_at_;                   // by unit: the last op
  std::vector<bool> not_offloaded_;  // by unit: gradients were reduced, and are not in host memory
  std::vector<bool> outdated_;       // by unit: the device has its parameters as before the step
  std::vector<std::optional<int32_t>> slot_of_, gradient_slot_of_;  // by unit
  std::vector<SlotState> slots_, gradient_slots_;
  std::vector<int32_t> forwarded_;           // by microbatch: units forwarded
  std::vector<int32_t> backward_left_;       // by microbatch: units still to go back
  std::vector<std::set<int32_t>> deferred_;  // by unit: microbatches that wait for kBackwardWeights
  std::vector<std::vector<size_t>> used_;    // by unit: ops that read what is gathered now
  // By stream: the last op that completes gradients, a reduction or a backward. The stream's others have ended when it
  // has.
  std::array<std::optional<size_t>, kStreams> gradients_;
  std::vector<std::vector<Contribution>> pending_;  // by owner: those that entered no reduction yet
  InputRules inputs_;
  EdgeRules edges_;
};

std::vector<const Op*> Collectives(const Schedule& schedule, int32_t group) {
  const bool in_both = group == kTensorGroup || group == kContextGroup;  // some ops issue collectives in either
  std::vector<const Op*> ops;
  for (const Op& op : schedule.ops) {
    if (op.group == group || (in_both && op.group == kContextTensorGroup)) ops.push_back(&op);
  }
  return ops;
}

}  // namespace

absl::Status Check(const Schedule& schedule, const Inventory& inventory) {
  if (schedule.microbatches < 1) return absl::InternalError("schedule: no microbatch");
  return Checker(schedule, inventory).Run();
}

std::string CollectivesDigest(const Schedule& schedule, int32_t group) {
  std::string canonical;
  for (const Op* op : Collectives(schedule, group)) {
    absl::StrAppend(&canonical, static_cast<int>(op->kind), " ", op->unit, " ", op->unit_end, " ", op->microbatch, " ",
                    op->even ? 1 : 0, "\n");
  }
  return Sha256Hex(canonical);
}

}  // namespace muster
