#include "strategies/schedule/build.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "strategies/partition/flat.h"

namespace muster {
namespace {

// Units at the model's front, whose backward comes last: these reductions cannot overlap backward, so small buckets are
// flushed early.
constexpr int32_t kFrontUnits = 3;
constexpr uint64_t kFrontBytes = 1 << 20;

// Units [begin, end).
struct Span {
  int32_t begin = 0;
  int32_t end = 0;
  uint64_t bytes = 0;
};

// An op of the compute stream, and the spans whose parameters it reads.
struct Event {
  OpKind kind;
  int32_t unit;
  int32_t microbatch;
  std::set<size_t> reads;
};

// A span is held from before event `begin` until after event `end`.
struct Hold {
  size_t span;
  size_t begin;
  size_t end;
};

// Both ascending.
bool Overlap(const std::vector<Hold>& a, const std::vector<Hold>& b) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].begin <= b[j].end && b[j].begin <= a[i].end) return true;
    a[i].end < b[j].end ? ++i : ++j;
  }
  return false;
}

// Assigns a slot to each span, the same one for all its holds, in which no other span's holds overlap them. The largest
// spans come first, so that a slot is as large as its first. `holds` are ascending.
std::vector<int32_t> AssignSlots(const std::vector<Span>& spans, const std::vector<Hold>& holds, int32_t& slots) {
  const auto earlier = [](const Hold& a, const Hold& b) { return a.begin < b.begin; };
  std::vector<size_t> order(spans.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return spans[a].bytes > spans[b].bytes; });
  std::vector<std::vector<Hold>> of(spans.size()), taken;
  for (const Hold& hold : holds) of[hold.span].push_back(hold);
  std::vector<int32_t> slot(spans.size(), -1);
  for (const size_t s : order) {
    if (of[s].empty()) continue;
    size_t at = 0;
    while (at < taken.size() && Overlap(of[s], taken[at])) ++at;
    if (at == taken.size()) taken.emplace_back();
    const auto middle = taken[at].insert(taken[at].end(), of[s].begin(), of[s].end());
    std::inplace_merge(taken[at].begin(), middle, taken[at].end(), earlier);
    slot[s] = static_cast<int32_t>(at);
  }
  slots = static_cast<int32_t>(taken.size());
  return slot;
}

class Builder {
 public:
  Builder(const Inventory& inventory, const ScheduleRecipe& recipe)
      : inventory_(inventory), recipe_(recipe), units_(inventory.units_size()) {
    for (const Unit& unit : inventory.units()) bytes_.push_back(4 * partition::Flatten(unit).elements);
    gathers_ = GatherSpans();
    reductions_ = ReduceSpans();
  }

  void PlanTraining() {
    for (int32_t m = 0; m < recipe_.microbatches; ++m) {
      for (int32_t u = 0; u < units_; ++u) Add(OpKind::kForward, u, m);
      for (int32_t u = units_; u-- > 0;) {
        if (recipe_.recompute && Recomputed(u)) Add(OpKind::kRecompute, u, m);
        Add(OpKind::kBackward, u, m);
      }
    }
    PlanGathers();
    PlanGradients();
  }

  Schedule Train() {
    PlanTraining();
    EmitEvents();
    Emit({.kind = OpKind::kClipGradients, .group = recipe_.sharded ? kShardGroup : -1});
    if (last_reduction_ >= 0) ops_.back().waits = {last_reduction_};
    Emit({.kind = OpKind::kOptimizerStep});
    schedule_.microbatches = recipe_.microbatches;
    return std::move(schedule_);
  }

  // Uses training's slots.
  Schedule Evaluate(const Builder& training) {
    slot_ = training.slot_;
    schedule_.slots = training.slots_;
    for (int32_t u = 0; u < units_; ++u) Add(OpKind::kForward, u, 0);
    PlanGathers();
    EmitEvents();
    return std::move(schedule_);
  }

 private:
  bool Distributed() const { return recipe_.sharded || recipe_.replicated; }
  int32_t last() const { return static_cast<int32_t>(ops_.size()) - 1; }

  std::vector<Span> GatherSpans() const {
    std::vector<Span> spans;
    for (int32_t u = 0; u < units_; ++u) {
      if (!spans.empty() && spans.back().bytes + bytes_[u] <= recipe_.gather_bytes) {
        spans.back().end = u + 1;
        spans.back().bytes += bytes_[u];
      } else {
        spans.push_back({u, u + 1, bytes_[u]});
      }
    }
    return spans;
  }

  // From the model's end, where the backward begins. A span without bytes joins the one before it.
  std::vector<Span> ReduceSpans() const {
    if (recipe_.gradients == Gradients::kOwned && recipe_.gather_bytes > 0) return GatherSpans();
    std::vector<Span> spans;
    Span span{units_, units_, 0};
    for (int32_t u = units_; u-- > 0;) {
      span.begin = u;
      span.bytes += bytes_[u];
      const uint64_t enough = u < kFrontUnits ? std::min(recipe_.reduce_bytes, kFrontBytes) : recipe_.reduce_bytes;
      if (span.bytes == 0 || (span.bytes < enough && u > 0)) continue;
      spans.push_back(span);
      span = {u, u, 0};
    }
    return spans;
  }

  // Its own units, and those that they borrow from.
  std::vector<int32_t> Owners(int32_t unit) const {
    std::vector<int32_t> owners = {unit};
    for (const Borrow& borrow : inventory_.units(unit).borrows()) {
      for (int32_t u = 0; u < units_; ++u) {
        if (inventory_.units(u).name() == borrow.unit()) owners.push_back(u);
      }
    }
    return owners;
  }
  static size_t Covering(const std::vector<Span>& spans, int32_t unit) {
    size_t s = 0;
    while (spans[s].begin > unit || spans[s].end <= unit) ++s;
    return s;
  }

  // Recomputing a unit that keeps only its input anyway saves nothing.
  bool Recomputed(int32_t u) const {
    return u > 0 && inventory_.units(u).saved_bytes() > inventory_.units(u - 1).output_bytes();
  }

  // An op is on its stream of the table of ops.
  void Emit(Op op) {
    op.stream = Traits(op.kind).stream;
    ops_.push_back(std::move(op));
  }

  void Add(OpKind kind, int32_t unit, int32_t microbatch) {
    Event event{kind, unit, microbatch, {}};
    if (Traits(kind).parameters != ParameterUse::kReadIfBackwardDoes ||
        !inventory_.units(unit).backward_without_parameters()) {
      for (const int32_t owner : Owners(unit)) event.reads.insert(Covering(gathers_, owner));
    }
    events_.push_back(std::move(event));
  }

  void PlanGathers() {
    if (recipe_.parameters == Parameters::kWhole) return;
    const bool freed = recipe_.parameters == Parameters::kFreed;
    std::map<size_t, Hold> open;
    for (size_t e = 0; e < events_.size(); ++e) {
      for (const size_t s : events_[e].reads) {
        if (gathers_[s].bytes == 0) continue;
        const auto [held, fresh] = open.emplace(s, Hold{s, e, e});
        if (!fresh && freed && e > held->second.end + 1) {
          holds_.push_back(held->second);
          held->second.begin = e;
        }
        held->second.end = e;
      }
    }
    for (const auto& [s, hold] : open) holds_.push_back(hold);
    std::sort(holds_.begin(), holds_.end(),
              [](const Hold& a, const Hold& b) { return std::pair(a.begin, a.span) < std::pair(b.begin, b.span); });
    std::vector<Hold> taken = Taken();
    while (JoinWhatMeets(taken)) taken = Taken();
    for (size_t h = 0; h < holds_.size(); ++h) {
      gather_before_[taken[h].begin].push_back(h);
      begin_at_[holds_[h].begin].push_back(h);
      release_after_[holds_[h].end].push_back(holds_[h].span);
    }
    if (!slot_.empty()) return;
    slot_.assign(gathers_.size(), -1);
    if (recipe_.parameters != Parameters::kUpdated) slot_ = AssignSlots(gathers_, taken, slots_);
    schedule_.slots = slots_;
  }

  // The holds, by the event that issues their gathers: those that begin together are one step of the prefetch.
  std::vector<Hold> Taken() const {
    std::vector<size_t> begins;
    for (const Hold& hold : holds_) {
      if (begins.empty() || begins.back() != hold.begin) begins.push_back(hold.begin);
    }
    const size_t ahead = static_cast<size_t>(recipe_.prefetch);
    std::map<size_t, size_t> issue;
    for (size_t i = 0; i < begins.size(); ++i) issue[begins[i]] = i < ahead ? 0 : begins[i - ahead];
    std::vector<Hold> taken = holds_;
    for (Hold& hold : taken) hold.begin = issue.at(hold.begin);
    return taken;
  }

  // A gather that would be issued before the span's last release, or right after it, extends the hold instead.
  bool JoinWhatMeets(const std::vector<Hold>& taken) {
    std::vector<Hold> joined;
    std::map<size_t, size_t> last;  // span -> index in joined
    for (size_t h = 0; h < holds_.size(); ++h) {
      const auto before = last.find(holds_[h].span);
      if (before != last.end() && taken[h].begin <= joined[before->second].end + 1) {
        joined[before->second].end = holds_[h].end;
      } else {
        last[holds_[h].span] = joined.size();
        joined.push_back(holds_[h]);
      }
    }
    const bool any = joined.size() < holds_.size();
    holds_ = std::move(joined);
    return any;
  }

  void PlanGradients() {
    const bool owned = recipe_.gradients == Gradients::kOwned;
    if (!Distributed()) return;
    std::map<std::pair<size_t, int32_t>, Hold> holds;  // by (span, microbatch)
    for (size_t e = 0; e < events_.size(); ++e) {
      const Event& event = events_[e];
      if (event.kind != OpKind::kBackward) continue;
      if (!owned && event.microbatch + 1 < recipe_.microbatches) continue;
      for (const int32_t owner : Owners(event.unit)) {
        const size_t s = Covering(reductions_, owner);
        holds.emplace(std::pair(s, event.microbatch), Hold{s, e, e}).first->second.end = e;
      }
    }
    std::vector<Hold> taken;
    for (const auto& [key, hold] : holds) {
      taken.push_back({hold.span, hold.begin, hold.end + 1});  // a reduction runs while the next unit computes
      reduce_after_[hold.end].push_back(hold.span);
      if (owned) open_before_[hold.begin].push_back(hold.span);
    }
    std::sort(taken.begin(), taken.end(), [](const Hold& a, const Hold& b) { return a.begin < b.begin; });
    gradient_slot_.assign(reductions_.size(), -1);
    if (owned) gradient_slot_ = AssignSlots(reductions_, taken, schedule_.gradient_slots);
  }

  void EmitEvents() {
    std::map<size_t, int32_t> gathered;  // by hold: its op
    std::map<int32_t, int32_t> freed;    // by slot: the release
    std::map<int32_t, int32_t> reduced;  // by gradient slot: the reduction
    for (size_t e = 0; e < events_.size(); ++e) {
      const Event& event = events_[e];
      for (const size_t h : gather_before_[e]) Gather(holds_[h].span, freed), gathered[h] = last();
      for (const size_t s : open_before_[e]) Open(s, reduced);
      Op op{.kind = event.kind, .unit = event.unit, .microbatch = event.microbatch};
      for (const size_t h : begin_at_[e]) op.waits.push_back(gathered.at(h));
      std::sort(op.waits.begin(), op.waits.end());
      Emit(std::move(op));
      const int32_t computed = last();
      for (const size_t s : release_after_[e]) Release(s, freed);
      Reduce(e, computed, reduced);
    }
  }

  void Gather(size_t s, const std::map<int32_t, int32_t>& freed) {
    Op op{.kind = OpKind::kGather,
          .unit = gathers_[s].begin,
          .unit_end = gathers_[s].end,
          .group = kShardGroup,
          .slot = slot_[s]};
    if (freed.contains(op.slot)) op.waits = {freed.at(op.slot)};
    Emit(std::move(op));
  }

  void Release(size_t s, std::map<int32_t, int32_t>& freed) {
    Emit({.kind = OpKind::kRelease, .unit = gathers_[s].begin, .unit_end = gathers_[s].end});
    if (slot_[s] >= 0) freed[slot_[s]] = last();
  }

  void Open(size_t s, const std::map<int32_t, int32_t>& reduced) {
    Op op{.kind = OpKind::kOpenGradients,
          .unit = reductions_[s].begin,
          .unit_end = reductions_[s].end,
          .slot = gradient_slot_[s]};
    if (reduced.contains(op.slot)) op.waits = {reduced.at(op.slot)};
    Emit(std::move(op));
  }

  void Reduce(size_t e, int32_t computed, std::map<int32_t, int32_t>& reduced) {
    const Event& event = events_[e];
    const bool final = event.microbatch + 1 == recipe_.microbatches;
    // The loss is complete, and this small reduction overlaps the rest of the backward.
    if (Distributed() && final && event.kind == OpKind::kBackward && event.unit + 1 == units_) {
      Emit({.kind = OpKind::kReduceScalars, .group = kWorldGroup, .waits = {computed}});
    }
    for (const size_t s : reduce_after_[e]) {
      Op op{.unit = reductions_[s].begin, .unit_end = reductions_[s].end};
      if (recipe_.sharded) {
        op.kind = OpKind::kReduce, op.group = kShardGroup, op.waits = {computed};
        Emit(op);
        if (gradient_slot_[s] >= 0) reduced[gradient_slot_[s]] = last();
      }
      if (recipe_.replicated && final) {
        op.kind = OpKind::kAllReduce, op.group = kReplicaGroup;
        op.waits = {recipe_.sharded ? last() : computed};
        Emit(op);
      }
      last_reduction_ = last();
    }
  }

  const Inventory& inventory_;
  const ScheduleRecipe& recipe_;
  const int32_t units_;
  std::vector<uint64_t> bytes_;             // by unit
  std::vector<Span> gathers_, reductions_;  // spans gathered, and spans reduced, together
  std::vector<Event> events_;
  std::vector<Hold> holds_;                                           // of parameters, by begin
  std::vector<int32_t> slot_, gradient_slot_;                         // by span
  std::map<size_t, std::vector<size_t>> gather_before_, begin_at_;    // event -> holds
  std::map<size_t, std::vector<size_t>> release_after_;               // event -> spans of gathers_
  std::map<size_t, std::vector<size_t>> open_before_, reduce_after_;  // event -> spans of reductions_
  int32_t slots_ = 0;
  Schedule schedule_;
  std::vector<Op>& ops_ = schedule_.ops;
  int32_t last_reduction_ = -1;
};

}  // namespace

Schedule Build(const Inventory& inventory, const ScheduleRecipe& recipe) { return Builder(inventory, recipe).Train(); }

Schedule BuildEvaluation(const Inventory& inventory, const ScheduleRecipe& recipe) {
  Builder training(inventory, recipe);
  training.PlanTraining();
  return Builder(inventory, recipe).Evaluate(training);
}

}  // namespace muster
