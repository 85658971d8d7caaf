#include "strategies/schedule/build.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/inventory.h"
#include "strategies/partition/flat.h"
#include "strategies/schedule/chunks.h"
#include "strategies/schedule/events.h"
#include "strategies/schedule/input_moves.h"

namespace muster {
namespace {

// Units at the front of those that are trained, whose backward comes last: these reductions cannot overlap backward, so
// small buckets are flushed early.
constexpr int32_t kFrontUnits = 3;
constexpr uint64_t kFrontBytes = 1 << 20;

// By unit: those whose parameters it uses, its own first, then those that it borrows from.
std::vector<std::vector<int32_t>> OwnersByUnit(const Inventory& inventory) {
  std::map<std::string, int32_t> by_name;
  for (int32_t u = 0; u < inventory.units_size(); ++u) by_name[inventory.units(u).name()] = u;
  std::vector<std::vector<int32_t>> owners;
  for (int32_t u = 0; u < inventory.units_size(); ++u) {
    std::vector<int32_t>& its = owners.emplace_back(1, u);
    for (const Borrow& borrow : inventory.units(u).borrows()) {
      if (const auto found = by_name.find(borrow.unit()); found != by_name.end()) its.push_back(found->second);
    }
  }
  return owners;
}

// By unit: the span that it is in; -1: none, since it has no bytes.
std::vector<int32_t> SpanByUnit(const std::vector<Span>& spans, int32_t units) {
  std::vector<int32_t> by_unit(static_cast<size_t>(units), -1);
  for (size_t s = 0; s < spans.size(); ++s) {
    for (int32_t u = spans[s].begin; u < spans[s].end; ++u) by_unit[u] = static_cast<int32_t>(s);
  }
  return by_unit;
}

class Builder {
 public:
  Builder(const Inventory& inventory, const ScheduleRecipe& recipe)
      : inventory_(inventory),
        recipe_(recipe),
        units_(inventory.units_size()),
        chunks_(ChunksOf(inventory)),
        input_bytes_(InputBytes(inventory)),
        first_(models::FirstTrained(inventory)),
        splits_(std::any_of(recipe.order.begin(), recipe.order.end(),
                            [](const Phase& phase) { return phase.kind == PhaseKind::kBackwardWeights; })) {
    ended_by_.fill(None());
    schedule_.groups = recipe.groups, schedule_.edges = recipe.edges, schedule_.tied = recipe.tied;
    for (int32_t u = 0; u < units_; ++u) unit_by_name_[inventory.units(u).name()] = u;
    for (const Unit& unit : inventory.units()) {
      bytes_.push_back(4 * partition::Flatten(unit).elements);
      trained_bytes_.push_back(4 * partition::TrainedElements(unit));
    }
    owners_ = OwnersByUnit(inventory);
    lent_ = LentToOtherChunks();
    gathers_ = GatherSpans();
    reductions_ = ReduceSpans();
    gather_of_ = SpanByUnit(gathers_, units_);
    reduction_of_ = SpanByUnit(reductions_, units_);
    for (const std::vector<int32_t>& owners : owners_) {
      std::vector<int32_t>& reads = reads_.emplace_back();
      for (const int32_t owner : owners) reads.push_back(gather_of_[owner]);
      std::sort(reads.begin(), reads.end());
      reads.erase(std::unique(reads.begin(), reads.end()), reads.end());
    }
  }

  void PlanTraining() {
    events_.reserve(static_cast<size_t>(recipe_.microbatches) * units_ *
                    (2 + (recipe_.recompute ? 1 : 0) + (splits_ ? 1 : 0)));
    for (const Phase& phase : recipe_.order) Add(phase);
    for (int32_t m = 0; recipe_.order.empty() && m < recipe_.microbatches; ++m) {
      for (int32_t c = 0; c < chunks(); ++c) Add({PhaseKind::kForward, c, m});
      for (int32_t c = chunks(); c-- > 0;) Add({PhaseKind::kBackward, c, m});
    }
    PlanEdges();
    PlanGathers();
    PlanGradients();
    PlanInputs();
  }

  Schedule Train() {
    PlanTraining();
    training_ = true;
    EmitEvents();
    // The ranks of a share have the loss in common, so without other reductions the sum overlaps nothing.
    const bool scalars_last = Pipelined() || (models::IsShare(inventory_) && !Distributed());
    if (scalars_last) {
      Op scalars{.kind = OpKind::kReduceScalars, .group = kWorldGroup};
      if (last_loss_ >= 0) scalars.waits = {last_loss_};
      Emit(std::move(scalars));
    }
    Op norm{.kind = OpKind::kGradientNorm,
            .group = recipe_.sharded || Pipelined() || models::IsShare(inventory_) ? kModelGroup : -1};
    if (scalars_last) norm.waits.push_back(last());
    for (const auto& [unit, sent] : sent_tied_) norm.waits.push_back(sent);
    for (const int32_t moved : tied_moved_) norm.waits.push_back(moved);
    if (last_reduction_ >= 0) norm.waits.push_back(last_reduction_);
    Emit(std::move(norm));
    Step();
    schedule_.microbatches = recipe_.microbatches;
    schedule_.two_exchanges = recipe_.two_exchanges;
    return std::move(schedule_);
  }

  // Uses training's slots.
  Schedule Evaluate(const Builder& training) {
    slot_ = training.slot_;
    schedule_.slots = slots_ = training.slots_;
    for (int32_t c = 0; c < chunks(); ++c) Add({PhaseKind::kForward, c, 0});
    PlanEdges();
    schedule_.activation_slots = std::max(schedule_.activation_slots, training.schedule_.activation_slots);
    PlanGathers();
    EmitEvents();
    return std::move(schedule_);
  }

 private:
  struct PlannedPhase {
    Phase phase;
    uint32_t begin, end;              // its events
    int32_t slot = -1;                // that it receives into
    int32_t received = -1;            // the op
    std::vector<int32_t> frees = {};  // slots whose last use it is
  };

  bool Even(const Span& span) const {
    if (recipe_.even_units.empty()) return false;
    const auto begin = recipe_.even_units.begin();
    return std::all_of(begin + span.begin, begin + span.end, [](bool even) { return even; });
  }
  // Whether there are tensors and all of them are frozen.
  bool Frozen(const Span& span) const {
    const auto any = [&](const std::vector<uint64_t>& bytes) {
      return std::any_of(bytes.begin() + span.begin, bytes.begin() + span.end, [](uint64_t b) { return b > 0; });
    };
    return any(bytes_) && !any(trained_bytes_);
  }
  int32_t chunks() const { return static_cast<int32_t>(chunks_.size()); }
  bool Pipelined() const { return !recipe_.edges.empty(); }
  bool Distributed() const { return recipe_.sharded || recipe_.replicated; }
  bool HasLevels() const { return recipe_.shard_levels.any() || recipe_.replica_levels.any(); }
  bool Offloads() const { return recipe_.offloaded != Offloaded::kNothing; }
  // A slot is free after its gradients are in host memory. Where replicas share what a shard owns, it is summed over
  // them first, once a step.
  bool OffloadsSlots() const {
    return Offloads() && recipe_.gradients == Gradients::kOwned && !(recipe_.sharded && recipe_.replicated);
  }
  int32_t last() const { return static_cast<int32_t>(ops_.size()) - 1; }

  bool Splits(int32_t u) const { return splits_ && SplitsBackward(inventory_.units(u)); }
  static bool AddsGradients(const Event& event) { return Traits(event.kind).gradients == GradientUse::kAdd; }

  // By unit: whether one of another chunk of the stage borrows a tensor of it.
  std::vector<bool> LentToOtherChunks() const {
    std::vector<bool> lent(static_cast<size_t>(units_));
    for (const ChunkSpan& chunk : chunks_) {
      for (int32_t u = chunk.begin; u < chunk.end; ++u) {
        for (const int32_t owner : owners_[u]) {
          if (owner < chunk.begin || owner >= chunk.end) lent[owner] = true;
        }
      }
    }
    return lent;
  }

  // Spans do not reach over it: the chunks of a stage are computed at different times, and so are the gradients of
  // units that split, of those that do not, and of those that another chunk adds to.
  bool BeginsSpan(int32_t u) const {
    if (u > 0 && (Splits(u) != Splits(u - 1) || lent_[u] || lent_[u - 1])) return true;
    return std::any_of(chunks_.begin(), chunks_.end(), [u](const ChunkSpan& chunk) { return chunk.begin == u; });
  }

  std::vector<Span> GatherSpans() const {
    std::vector<Span> spans;
    for (int32_t u = 0; u < units_; ++u) {
      if (!BeginsSpan(u) && spans.back().bytes + bytes_[u] <= recipe_.gather_bytes) {
        spans.back().end = u + 1;
        spans.back().bytes += bytes_[u];
      } else {
        spans.push_back({u, u + 1, bytes_[u]});
      }
    }
    return spans;
  }

  // From the model's end, where the backward begins, to where it ends. A span without bytes joins the one before it.
  std::vector<Span> ReduceSpans() const {
    std::vector<Span> spans;
    if (recipe_.gradients == Gradients::kOwned && recipe_.gather_bytes > 0) {
      for (Span span : GatherSpans()) {
        span.bytes =
            std::accumulate(trained_bytes_.begin() + span.begin, trained_bytes_.begin() + span.end, uint64_t{0});
        if (span.bytes > 0 || !Frozen(span)) spans.push_back(span);
      }
      return spans;
    }
    Span span{units_, units_, 0};
    for (int32_t u = units_; u-- > first_;) {
      span.begin = u;
      span.bytes += trained_bytes_[u];
      const uint64_t enough =
          u < first_ + kFrontUnits ? std::min(recipe_.reduce_bytes, kFrontBytes) : recipe_.reduce_bytes;
      if (!BeginsSpan(u) && (span.bytes == 0 || (span.bytes < enough && u > first_))) continue;
      if (span.bytes > 0) spans.push_back(span);
      span = {u, u, 0};
    }
    return spans;
  }

  // Keeping only the input costs nothing where no more is kept anyway.
  bool Recomputed(int32_t u) const {
    const bool begins_model = chunks_[0].first && u == 0;
    return recipe_.recompute && !begins_model && u >= first_ && inventory_.units(u).saved_bytes() > input_bytes_[u];
  }

  // Tensors that are tied to another stage's: who owns them, or borrows them, here.
  struct Tied {
    int32_t unit = -1;
    bool owned = false;  // by this stage
    bool trained = false;
    TiedEdges edges;
    int32_t computed = -1;  // the last op that adds to its gradient
  };
  std::vector<Tied> TiedHere() const {
    std::vector<Tied> all;
    for (size_t t = 0; t < recipe_.tied.size(); ++t) {
      const TiedTensor& tensor = inventory_.tied(static_cast<int>(t));
      const auto owner = unit_by_name_.find(tensor.owner());
      const bool owned = owner != unit_by_name_.end();
      const Tied tied{owned ? owner->second : unit_by_name_.at(tensor.user()), owned, !tensor.tensor().frozen(),
                      recipe_.tied[t]};
      // Those of one unit go over an edge together.
      const auto same = std::find_if(all.begin(), all.end(), [&](const Tied& other) {
        return other.unit == tied.unit && other.edges == tied.edges;
      });
      if (same == all.end()) {
        all.push_back(tied);
      } else {
        same->trained |= tied.trained;
      }
    }
    return all;
  }

  // Before the first pass, and after what it gathers.
  void MoveTied(const std::vector<int32_t>& gathered) {
    tied_ = TiedHere();
    last_backward_.assign(static_cast<size_t>(units_), -1);
    for (uint32_t e = 0; e < events_.size(); ++e) {
      if (AddsGradients(events_[e])) last_backward_[events_[e].unit] = e;
    }
    for (const Tied& tied : tied_) {
      Op op{.unit = tied.unit, .unit_end = tied.unit + 1, .group = tied.edges.parameters};
      op.kind = tied.owned ? OpKind::kSendTied : OpKind::kReceiveTied;
      const int32_t span = gather_of_[tied.unit];
      for (size_t h = 0; tied.owned && h < holds_.size() && gathered_from_[h] == 0; ++h) {
        if (static_cast<int32_t>(holds_[h].span) == span) op.waits.push_back(gathered[h]);
      }
      Emit(std::move(op));
      (tied.owned ? sent_tied_ : received_tied_).emplace(tied.unit, last());
    }
  }

  // After the last pass of a step that adds to the unit's gradient, op `computed`.
  void ReceiveTiedGradients(const Event& event, int32_t computed) {
    for (Tied& tied : tied_) {
      if (tied.unit != event.unit || !tied.trained || !training_) continue;
      tied.computed = computed;
      if (!tied.owned) continue;
      Op op{.kind = OpKind::kReceiveTiedGradient,
            .unit = tied.unit,
            .unit_end = tied.unit + 1,
            .group = tied.edges.gradient,
            .waits = {computed}};
      const auto before = tied_added_.find(tied.unit);
      if (before != tied_added_.end()) op.waits.push_back(before->second);
      Emit(std::move(op));
      tied_added_[tied.unit] = last();
      tied_moved_.push_back(last());
    }
  }

  // At the end: the owner receives them then, and they must not hold up what else is sent.
  void SendTiedGradients() {
    for (const Tied& tied : tied_) {
      if (tied.owned || tied.computed < 0) continue;
      Emit({.kind = OpKind::kSendTiedGradient,
            .unit = tied.unit,
            .unit_end = tied.unit + 1,
            .group = tied.edges.gradient,
            .waits = {tied.computed}});
      tied_moved_.push_back(last());  // the next step begins with zeros there
    }
  }

  // By stream: the last op that has ended when op `w` has, as far as that saves a wait: transfers come between the
  // other streams.
  using Ended = std::array<int32_t, kStreams>;
  bool Transfers() const { return Offloads() || recipe_.offload_inputs || Pipelined(); }
  Ended EndedWith(int32_t w) const {
    if (Transfers()) return ended_with_[static_cast<size_t>(w)];
    Ended ended = None();
    ended[static_cast<size_t>(ops_[w].stream)] = w;
    return ended;
  }

  // By the table of ops; what goes to an earlier stage, and its gradients, must not hold up what goes to a later one,
  // nor what travels between nodes what does inside them.
  Stream StreamOf(const Op& op) const {
    const Stream stream = Traits(op.kind).stream;
    const bool between = op.group == recipe_.shard_levels.between || op.group == recipe_.replica_levels.between;
    if (op.group >= 0 && between && stream == Stream::kReduce) return Stream::kReduceBetween;
    if (Traits(op.kind).payload != Payload::kActivations) return stream;
    const GroupSpec& edge = schedule_.groups[static_cast<size_t>(op.group)];
    const bool back = edge.channel == Channel::kActivations ? edge.from > edge.to : edge.from < edge.to;
    return back ? OnTheWayBack(stream) : stream;
  }

  // An op is on its stream of the table of ops. It waits only for what its other waits do not imply, and one that
  // computes for what no op before it has waited for: ops of a stream end in their order, and those that compute begin
  // in theirs.
  void Emit(Op op) {
    op.stream = StreamOf(op);
    const auto join = [](Ended& ended, const Ended& more) {
      for (size_t s = 0; s < kStreams; ++s) ended[s] = std::max(ended[s], more[s]);
    };
    const bool computes = op.stream == Stream::kCompute;
    Ended& before = ended_by_[static_cast<size_t>(op.stream)];
    Ended begun = computes ? before : None();
    std::sort(op.waits.begin(), op.waits.end(), std::greater<>());
    Waits kept;
    for (const int32_t w : op.waits) {
      if (w <= begun[static_cast<size_t>(ops_[w].stream)]) continue;
      kept.push_back(w);
      join(begun, EndedWith(w));
    }
    std::sort(kept.begin(), kept.end());
    op.waits = std::move(kept);
    join(before, begun);
    before[static_cast<size_t>(op.stream)] = static_cast<int32_t>(ops_.size());
    if (Transfers()) ended_with_.push_back(before);
    ops_.push_back(std::move(op));
  }

  void Add(const Phase& phase) {
    const auto [begin, end, first, last] = chunks_[phase.chunk];
    const auto before = static_cast<uint32_t>(events_.size());
    if (phase.kind == PhaseKind::kForward) {
      for (int32_t u = begin; u < end; ++u) Add(OpKind::kForward, u, phase.microbatch);
    }
    for (int32_t u = end; phase.kind == PhaseKind::kBackward && u-- > std::max(begin, first_);) {
      if (Recomputed(u)) Add(OpKind::kRecompute, u, phase.microbatch);
      Add(Splits(u) ? OpKind::kBackwardInputs : OpKind::kBackward, u, phase.microbatch);
    }
    for (int32_t u = end; phase.kind == PhaseKind::kBackwardWeights && u-- > std::max(begin, first_);) {
      if (Splits(u)) Add(OpKind::kBackwardWeights, u, phase.microbatch);
    }
    const auto after = static_cast<uint32_t>(events_.size());
    if (after > before) phases_.push_back({phase, before, after});
  }
  void Add(OpKind kind, int32_t unit, int32_t microbatch) { events_.push_back({kind, unit, microbatch}); }

  static bool IsBackward(const Phase& phase) { return phase.kind == PhaseKind::kBackward; }
  int32_t ReceivesFrom(const Phase& phase) const {
    if (!Pipelined() || phase.kind == PhaseKind::kBackwardWeights) return -1;
    return IsBackward(phase) ? recipe_.edges[phase.chunk].receive_gradient : recipe_.edges[phase.chunk].receive;
  }
  int32_t SendsTo(const Phase& phase) const {
    if (!Pipelined() || phase.kind == PhaseKind::kBackwardWeights) return -1;
    return IsBackward(phase) ? recipe_.edges[phase.chunk].send_gradient : recipe_.edges[phase.chunk].send;
  }

  // What each phase receives is taken before the phase that comes before it, into the first slot that is free by then.
  void PlanEdges() {
    if (!Pipelined()) return;
    // By chunk and microbatch: the phase that reads an activation last.
    std::map<std::pair<int32_t, int32_t>, size_t> last;
    for (size_t k = 0; k < phases_.size(); ++k) {
      const Phase& phase = phases_[k].phase;
      if (phase.kind != PhaseKind::kBackwardWeights) last[{phase.chunk, phase.microbatch}] = k;
    }
    std::vector<size_t> receive;  // phases
    std::vector<Stay> stays;      // of what each of them receives
    for (size_t k = 0; k < phases_.size(); ++k) {
      const Phase& phase = phases_[k].phase;
      if (ReceivesFrom(phase) < 0) continue;
      receive.push_back(k);
      stays.push_back(
          {static_cast<uint32_t>(k == 0 ? 0 : k - 1), static_cast<uint32_t>(last.at({phase.chunk, phase.microbatch}))});
    }
    const std::vector<int32_t> slots = FirstFreeSlots(stays, schedule_.activation_slots);
    for (size_t i = 0; i < slots.size(); ++i) {
      phases_[receive[i]].slot = slots[i];
      phases_[stays[i].end].frees.push_back(slots[i]);
    }
    freed_activation_.assign(static_cast<size_t>(schedule_.activation_slots), {});
  }

  // Before the first event of phase k.
  void Receive(size_t k) {
    PlannedPhase& planned = phases_[k];
    if (planned.slot < 0) return;
    const auto& [begin, end, first, last] = chunks_[planned.phase.chunk];
    Op op{.microbatch = planned.phase.microbatch, .group = ReceivesFrom(planned.phase), .slot = planned.slot};
    op.kind = IsBackward(planned.phase) ? OpKind::kReceiveGradient : OpKind::kReceiveActivation;
    op.unit = IsBackward(planned.phase) ? end - 1 : begin;
    op.waits = freed_activation_[planned.slot];
    Emit(std::move(op));
    planned.received = this->last();
  }

  // After its last event, which is op `computed`.
  void EndPhase(PlannedPhase& planned, int32_t computed) {
    if (const int32_t group = SendsTo(planned.phase); group >= 0) {
      const auto& [begin, end, first, last] = chunks_[planned.phase.chunk];
      const bool backward = IsBackward(planned.phase);
      Emit({.kind = backward ? OpKind::kSendGradient : OpKind::kSendActivation,
            .unit = backward ? begin : end - 1,
            .microbatch = planned.phase.microbatch,
            .group = group,
            .waits = {computed}});
      sent_[group].push_back(this->last());
    }
    for (const int32_t slot : planned.frees) freed_activation_[slot] = {computed};
  }

  // What the last event of a phase waits for: too many of its outputs must not be on their way.
  void WaitForOutputs(const Phase& phase, Waits& waits) const {
    const auto found = sent_.find(SendsTo(phase));
    if (found == sent_.end()) return;
    const std::vector<int32_t>& sent = found->second;
    if (sent.size() >= kOutputsInFlight) waits.push_back(sent[sent.size() - kOutputsInFlight]);
  }

  bool ReadsParameters(const Event& event) const {
    const ParameterUse use = Traits(event.kind).parameters;
    if (use == ParameterUse::kNone) return false;
    return use != ParameterUse::kReadIfBackwardDoes || !inventory_.units(event.unit).backward_without_parameters();
  }

  void PlanGathers() {
    if (recipe_.parameters == Parameters::kWhole) return;
    FindHolds();
    std::vector<Hold> taken = TakenHolds();
    while (JoinWhatMeets(taken)) taken = TakenHolds();
    gathered_from_.reserve(taken.size());
    for (const Hold& hold : taken) gathered_from_.push_back(hold.begin);
    released_.resize(holds_.size());
    std::iota(released_.begin(), released_.end(), 0);
    std::stable_sort(released_.begin(), released_.end(),
                     [this](uint32_t a, uint32_t b) { return holds_[a].end < holds_[b].end; });
    if (!slot_.empty()) return;
    slot_.assign(gathers_.size(), -1);
    if (recipe_.parameters != Parameters::kUpdated) slot_ = AssignSlots(gathers_, taken, slots_);
    schedule_.slots = slots_;
  }

  void FindHolds() {
    const bool freed = recipe_.parameters == Parameters::kFreed;
    std::vector<std::optional<Hold>> open(gathers_.size());
    // What another stage borrows is sent before the first pass.
    for (const Tied& tied : TiedHere()) {
      const int32_t s = gather_of_[tied.unit];
      if (tied.owned) open[s] = Hold{static_cast<uint32_t>(s), 0, 0};
    }
    for (uint32_t e = 0; e < events_.size(); ++e) {
      if (!ReadsParameters(events_[e])) continue;
      for (const int32_t s : reads_[events_[e].unit]) {
        if (s < 0 || gathers_[s].bytes == 0) continue;
        std::optional<Hold>& held = open[s];
        if (held.has_value() && freed && e > held->end + 1) {
          holds_.push_back(*held);
          held.reset();
        }
        if (!held.has_value()) held = Hold{static_cast<uint32_t>(s), e, e};
        held->end = e;
      }
    }
    for (const std::optional<Hold>& hold : open) {
      if (hold.has_value()) holds_.push_back(*hold);
    }
    std::sort(holds_.begin(), holds_.end(),
              [](const Hold& a, const Hold& b) { return std::pair(a.begin, a.span) < std::pair(b.begin, b.span); });
  }

  // The holds, by the event that issues their gathers: those that begin together are one step of the prefetch.
  std::vector<Hold> TakenHolds() const {
    const size_t ahead = static_cast<size_t>(recipe_.prefetch);
    std::vector<uint32_t> begins;
    std::vector<Hold> taken = holds_;
    for (Hold& hold : taken) {
      if (begins.empty() || begins.back() != hold.begin) begins.push_back(hold.begin);
      hold.begin = begins.size() <= ahead ? 0 : begins[begins.size() - 1 - ahead];
    }
    return taken;
  }

  // A gather that would be issued before the span's last release, or right after it, extends the hold instead.
  bool JoinWhatMeets(const std::vector<Hold>& taken) {
    std::vector<Hold> joined;
    joined.reserve(holds_.size());
    std::vector<int64_t> last(gathers_.size(), -1);  // by span: index in joined
    for (size_t h = 0; h < holds_.size(); ++h) {
      int64_t& before = last[holds_[h].span];
      if (before >= 0 && taken[h].begin <= joined[before].end + 1) {
        joined[before].end = holds_[h].end;
      } else {
        before = static_cast<int64_t>(joined.size());
        joined.push_back(holds_[h]);
      }
    }
    const bool any = joined.size() < holds_.size();
    holds_ = std::move(joined);
    return any;
  }

  // Gradients that are reduced in every microbatch leave their slots when its backward ends: in a pipeline that of a
  // chunk, beside which other microbatches come. Where backwards split, a span has units that split or units that do
  // not, and its gradients come in one of the chunk's two phases.
  bool ClosesGradients(const Phase& phase) const {
    return phase.kind != PhaseKind::kForward && (Pipelined() || phase.chunk == 0);
  }

  void PlanGradients() {
    const bool owned = recipe_.gradients == Gradients::kOwned;
    if (!Distributed() && !Offloads()) return;
    std::vector<Hold> taken;
    std::vector<std::optional<Hold>> open(reductions_.size());
    const auto close = [&] {
      for (std::optional<Hold>& hold : open) {
        if (hold.has_value()) reductions_after_.push_back(*std::exchange(hold, std::nullopt));
      }
    };
    for (const PlannedPhase& planned : phases_) {
      for (uint32_t e = planned.begin; e < planned.end; ++e) {
        const Event& event = events_[e];
        if (!AddsGradients(event)) continue;
        for (const int32_t owner : owners_[event.unit]) {
          const int32_t s = reduction_of_[owner];
          if (s < 0 || Frozen({owner, owner + 1, 0})) continue;
          if (!open[s].has_value()) open[s] = Hold{static_cast<uint32_t>(s), e, e};
          open[s]->end = e;
        }
      }
      if (owned && ClosesGradients(planned.phase)) close();
    }
    close();
    const auto by_end = [](const Hold& a, const Hold& b) {
      return std::pair(a.end, a.span) < std::pair(b.end, b.span);
    };
    const auto by_begin = [](const Hold& a, const Hold& b) {
      return std::pair(a.begin, a.span) < std::pair(b.begin, b.span);
    };
    std::sort(reductions_after_.begin(), reductions_after_.end(), by_end);
    last_of_.assign(reductions_.size(), 0);
    for (size_t r = 0; r < reductions_after_.size(); ++r) last_of_[reductions_after_[r].span] = r;
    gradient_slot_.assign(reductions_.size(), -1);
    if (!owned) return;
    opens_before_ = reductions_after_;
    std::sort(opens_before_.begin(), opens_before_.end(), by_begin);
    taken = opens_before_;
    for (Hold& hold : taken) ++hold.end;  // a reduction runs while the next unit computes
    gradient_slot_ = AssignSlots(reductions_, taken, schedule_.gradient_slots);
  }

  // Not those that the unit before keeps anyway; one that is recomputed, or has no backward, keeps nothing.
  void PlanInputs() {
    if (!recipe_.offload_inputs) return;
    std::vector<uint64_t> bytes(static_cast<size_t>(units_));
    for (int32_t u = 1; u < units_; ++u) {
      const Unit& before = inventory_.units(u - 1);
      const bool kept = u > first_ && !Recomputed(u - 1) && !before.frees_output();
      if (!Pipelined() && Recomputed(u) && !kept) bytes[u] = before.output_bytes();
    }
    inputs_ = PlanInputMoves(events_, bytes);
    schedule_.input_slots = inputs_.slots, schedule_.host_input_slots = inputs_.host_slots;
    for (std::vector<int32_t>* of : {&forwarded_, &offloaded_, &fetched_}) of->assign(bytes.size(), -1);
    host_input_read_.assign(static_cast<size_t>(inputs_.host_slots), -1);
    input_used_.assign(static_cast<size_t>(inputs_.slots), -1);
  }

  void EmitEvents() {
    ops_.reserve(events_.size() + 2 * holds_.size() + opens_before_.size() +
                 reductions_after_.size() * (recipe_.sharded && recipe_.replicated ? 2 : 1) * (HasLevels() ? 3 : 1) +
                 3 + (HasLevels() ? holds_.size() : 0) + (recipe_.two_exchanges ? reductions_.size() : 0) +
                 (Offloads() ? holds_.size() + reductions_after_.size() + 2 * reductions_.size() : 0) +
                 inputs_.moves.size() + (Pipelined() ? 2 * phases_.size() : 0));
    std::vector<int32_t> gathered(holds_.size());                                     // by hold: its op
    std::vector<int32_t> freed(static_cast<size_t>(slots_), -1);                      // by slot: the release
    std::vector<int32_t> reduced(static_cast<size_t>(schedule_.gradient_slots), -1);  // by gradient slot
    size_t gather = 0, begun = 0, release = 0, opening = 0, reduction = 0, move = 0;  // the next of each list
    size_t phase = 0;
    for (uint32_t e = 0; e < events_.size(); ++e) {
      const Event& event = events_[e];
      if (e == phases_[phase].end) ++phase;
      PlannedPhase& now = phases_[phase];
      for (; gather < holds_.size() && gathered_from_[gather] == e; ++gather) {
        Gather(holds_[gather].span, freed);
        gathered[gather] = last();
      }
      if (e == 0) MoveTied(gathered);
      if (e == 0) Receive(0);
      if (e == now.begin && phase + 1 < phases_.size()) Receive(phase + 1);
      for (; opening < opens_before_.size() && opens_before_[opening].begin == e; ++opening) {
        Open(opens_before_[opening].span, reduced);
      }
      for (; MovesBeside(e, move, /*after=*/false); ++move) MoveInput(inputs_.moves[move]);
      Op op{.kind = event.kind, .unit = event.unit, .microbatch = event.microbatch};
      if (event.kind == OpKind::kRecompute && MovesInput(event.unit)) op.waits = {fetched_[event.unit]};
      if (Traits(event.kind).group != GroupUse::kNone) {
        if (training_ && Distributed() && inventory_.units(event.unit).has_exchange()) op.group = kExchangeGroup;
        const bool tensor = inventory_.units(event.unit).has_tensor_exchange(),
                   context = inventory_.units(event.unit).has_context_exchange();
        if (tensor || context) op.group = !context ? kTensorGroup : tensor ? kContextTensorGroup : kContextGroup;
      }
      for (; begun < holds_.size() && holds_[begun].begin == e; ++begun) op.waits.push_back(gathered[begun]);
      if (e == now.begin && now.received >= 0) op.waits.push_back(now.received);
      if (e + 1 == now.end) WaitForOutputs(now.phase, op.waits);
      for (auto [tied, end] = received_tied_.equal_range(event.unit); tied != end; ++tied) {
        op.waits.push_back(tied->second);
      }
      Emit(std::move(op));
      const int32_t computed = last();
      NotePass(event, computed);
      if (e + 1 == now.end) EndPhase(now, computed);
      for (; MovesBeside(e, move, /*after=*/true); ++move) MoveInput(inputs_.moves[move]);
      for (; release < released_.size() && holds_[released_[release]].end == e; ++release) {
        Release(holds_[released_[release]].span, freed);
      }
      ReduceScalars(event, computed);
      if (last_backward_[event.unit] == e) ReceiveTiedGradients(event, computed);
      for (; reduction < reductions_after_.size() && reductions_after_[reduction].end == e; ++reduction) {
        const size_t span = reductions_after_[reduction].span;
        Reduce(event, span, /*final=*/last_of_[span] == reduction, computed, reduced);
      }
    }
    FinishSum();
    SendTiedGradients();
  }

  void Gather(size_t s, const std::vector<int32_t>& freed) {
    Op op{.kind = OpKind::kFetch, .unit = gathers_[s].begin, .unit_end = gathers_[s].end, .slot = slot_[s]};
    if (op.slot >= 0 && freed[op.slot] >= 0) op.waits = {freed[op.slot]};
    if (recipe_.offloaded == Offloaded::kParameters) {
      Emit(op);
      if (!recipe_.sharded) return;
      op.waits = {last()};
    }
    op.kind = OpKind::kGather, op.group = kShardGroup;
    if (const Levels& levels = recipe_.shard_levels; levels.any()) {
      op.kind = OpKind::kGatherBetween, op.group = levels.between;
      Emit(op);
      op.kind = OpKind::kGather, op.group = levels.inside, op.waits = {last()};
    }
    op.even = Even(gathers_[s]);
    Emit(std::move(op));
  }

  void Release(size_t s, std::vector<int32_t>& freed) {
    Op op{.kind = OpKind::kRelease, .unit = gathers_[s].begin, .unit_end = gathers_[s].end};
    for (const auto& [unit, sent] : sent_tied_) {
      if (gathers_[s].begin <= unit && unit < gathers_[s].end) op.waits.push_back(sent);
    }
    Emit(std::move(op));
    if (slot_[s] >= 0) freed[slot_[s]] = last();
  }

  void Open(size_t s, const std::vector<int32_t>& reduced) {
    Op op{.kind = OpKind::kOpenGradients,
          .unit = reductions_[s].begin,
          .unit_end = reductions_[s].end,
          .slot = gradient_slot_[s]};
    if (op.slot >= 0 && reduced[op.slot] >= 0) op.waits = {reduced[op.slot]};
    Emit(std::move(op));
  }

  bool MovesInput(int32_t unit) const { return !inputs_.moves.empty() && inputs_.slot_of[unit] >= 0; }
  // Whether the next move of an input is one that comes before this event, or after it.
  bool MovesBeside(uint32_t event, size_t move, bool after) const {
    if (move == inputs_.moves.size() || inputs_.moves[move].event != event) return false;
    return (inputs_.moves[move].kind == OpKind::kOffloadInput) == after;
  }

  void MoveInput(const InputMove& move) {
    Op op{.kind = move.kind, .unit = move.unit, .microbatch = move.microbatch};
    const int32_t host_slot = inputs_.host_slot_of[move.unit], slot = inputs_.slot_of[move.unit];
    switch (Traits(move.kind).inputs) {
      case InputUse::kNone:
        return;
      case InputUse::kOffload:
        op.slot = host_slot;
        op.waits = {forwarded_[move.unit - 1]};
        if (host_input_read_[host_slot] >= 0) op.waits.push_back(host_input_read_[host_slot]);
        Emit(std::move(op));
        offloaded_[move.unit] = last();
        return;
      case InputUse::kRelease:
        op.waits = {offloaded_[move.unit]};
        return Emit(std::move(op));
      case InputUse::kFetch:
        op.slot = slot;
        op.waits = {offloaded_[move.unit]};
        if (input_used_[slot] >= 0) op.waits.push_back(input_used_[slot]);
        Emit(std::move(op));
        fetched_[move.unit] = host_input_read_[host_slot] = last();
        return;
    }
  }

  // What the moves of inputs wait for.
  void NotePass(const Event& event, int32_t op) {
    if (inputs_.moves.empty()) return;
    if (event.kind == OpKind::kForward) forwarded_[event.unit] = op;
    if (GoesBack(event.kind) && MovesInput(event.unit)) input_used_[inputs_.slot_of[event.unit]] = op;
  }

  // The loss is complete, and this small reduction overlaps the rest of the backward. In a pipeline it comes last: the
  // stages reach it at different times, and it would hold up other reductions.
  void ReduceScalars(const Event& event, int32_t computed) {
    if (!GoesBack(event.kind) || event.unit + 1 != units_ || !chunks_.back().last) return;
    last_loss_ = computed;
    const bool final = event.microbatch + 1 == recipe_.microbatches;
    if (!Distributed() || Pipelined() || !final) return;
    Emit({.kind = OpKind::kReduceScalars, .group = kWorldGroup, .waits = {computed}});
  }

  // `final`: the span's last reduction of the step.
  void Reduce(const Event& event, size_t s, bool final, int32_t computed, std::vector<int32_t>& reduced) {
    Op op{.unit = reductions_[s].begin, .unit_end = reductions_[s].end};
    Waits complete = {computed};
    for (const auto& [unit, added] : tied_added_) {
      if (op.unit <= unit && unit < op.unit_end) complete.push_back(added);
    }
    const auto emit = [&](OpKind kind, int32_t group, bool even = false) {
      op.kind = kind, op.group = group, op.even = even, op.waits = complete;
      Emit(op);
      op.even = false;
      complete = {last()};
    };
    if (recipe_.sharded) {
      if (const Levels& levels = recipe_.shard_levels; levels.any()) {
        emit(OpKind::kReduceInside, levels.inside, Even(reductions_[s]));
        emit(OpKind::kReduce, levels.between);
      } else {
        emit(OpKind::kReduce, kShardGroup, Even(reductions_[s]));
      }
      if (gradient_slot_[s] >= 0) reduced[gradient_slot_[s]] = last();
    }
    if (recipe_.replicated && final) {
      const Levels& levels = recipe_.replica_levels;
      if (levels.any()) emit(OpKind::kScatterGradients, levels.inside);
      emit(OpKind::kAllReduce, levels.any() ? levels.between : kReplicaGroup);
      if (recipe_.two_exchanges) {
        const int32_t half = last();
        FinishSum();
        half_summed_ = half;
        return;
      }
      if (levels.any()) emit(OpKind::kGatherGradients, levels.sums);
    }
    if (OffloadsSlots() || (Offloads() && final)) {
      op.kind = OpKind::kOffload, op.group = -1, op.waits = complete;
      if (OffloadsSlots()) op.microbatch = event.microbatch;
      Emit(op);
      if (OffloadsSlots()) reduced[gradient_slot_[s]] = last();
    }
    last_reduction_ = last();
  }

  // Of the bucket before, while the newest one's first exchange travels.
  void FinishSum() {
    if (half_summed_ < 0) return;
    Op op = ops_[half_summed_];
    op.kind = OpKind::kFinishSum, op.waits = {std::exchange(half_summed_, -1)};
    Emit(op);
    if (const Levels& levels = recipe_.replica_levels; levels.any()) {
      op.kind = OpKind::kGatherGradients, op.group = levels.sums, op.waits = {last()};
      Emit(op);
    }
    last_reduction_ = last();
  }

  // On the host by bucket, those of the model's front first, since the next step begins with them. A stage that trains
  // nothing has a step as well: there it learns whether the others skip theirs.
  void Step() {
    if (!Offloads() || reductions_after_.empty()) {
      Emit({.kind = OpKind::kOptimizerStep});
      return;
    }
    std::vector<Span> spans = reductions_;
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
    for (const Span& span : spans) {
      Emit({.kind = OpKind::kOptimizerStep, .unit = span.begin, .unit_end = span.end});
      if (recipe_.offloaded == Offloaded::kParameters) continue;
      Emit({.kind = OpKind::kFetch, .unit = span.begin, .unit_end = span.end, .waits = {last()}});
    }
  }

  const Inventory& inventory_;
  const ScheduleRecipe& recipe_;
  const int32_t units_;
  const std::vector<ChunkSpan> chunks_;
  const std::vector<uint64_t> input_bytes_;        // by unit
  const int32_t first_;                            // unit: where the backward ends
  const bool splits_;                              // backwards, where units can
  std::vector<uint64_t> bytes_, trained_bytes_;    // by unit
  std::vector<Span> gathers_, reductions_;         // what is gathered, and what reduced, together
  std::vector<int32_t> gather_of_, reduction_of_;  // by unit: its span of those
  std::vector<std::vector<int32_t>> owners_;       // by unit
  std::vector<bool> lent_;                         // by unit
  std::vector<std::vector<int32_t>> reads_;        // by unit: spans of gathers_ that its events read, ascending
  std::vector<Event> events_;
  std::vector<PlannedPhase> phases_;
  std::vector<Hold> holds_;                       // of parameters, by begin
  std::vector<uint32_t> gathered_from_;           // by hold: the event that its gather is issued before; ascending
  std::vector<uint32_t> released_;                // indices of holds_, by end
  std::vector<Hold> opens_before_;                // of gradients, by begin
  std::vector<Hold> reductions_after_;            // of gradients, by end
  std::vector<size_t> last_of_;                   // by span: the last of them
  std::vector<Waits> freed_activation_;           // by slot of activations: the pass that read it last
  std::map<int32_t, std::vector<int32_t>> sent_;  // by edge
  std::map<std::string, int32_t> unit_by_name_;
  std::vector<Tied> tied_;
  std::multimap<int32_t, int32_t> sent_tied_, received_tied_;  // by unit: the ops
  std::map<int32_t, int32_t> tied_added_;      // by unit: the last op that adds to its gradient from another stage
  std::vector<int32_t> tied_moved_;            // ops that move gradients
  std::vector<int64_t> last_backward_;         // by unit: its last such event; -1: none
  int32_t last_loss_ = -1;                     // the last backward of the last unit
  std::vector<int32_t> slot_, gradient_slot_;  // by span
  int32_t slots_ = 0;
  InputPlan inputs_;
  std::vector<int32_t> forwarded_, offloaded_, fetched_;  // by unit: the last such op
  std::vector<int32_t> input_used_, host_input_read_;     // by slot: the last op that reads what is there
  bool training_ = false;                                 // an evaluation exchanges nothing
  Schedule schedule_;
  std::vector<Op>& ops_ = schedule_.ops;
  int32_t last_reduction_ = -1;
  int32_t half_summed_ = -1;  // the kAllReduce whose kFinishSum is to come
  static constexpr Ended None() {
    Ended none{};
    for (int32_t& op : none) op = -1;
    return none;
  }
  // By stream: what has ended when its last op has; of kCompute, also when its next one begins.
  std::array<Ended, kStreams> ended_by_;
  std::vector<Ended> ended_with_;  // by op, with offloading
};

}  // namespace

bool SplitsBackward(const Unit& unit) {
  return unit.deferred_bytes() > 0 && partition::TrainedElements(unit) > 0 &&
         std::none_of(unit.tensors().begin(), unit.tensors().end(), [](const Tensor& t) { return t.has_low_rank(); });
}

Schedule Build(const Inventory& inventory, const ScheduleRecipe& recipe) { return Builder(inventory, recipe).Train(); }

Schedule BuildEvaluation(const Inventory& inventory, const ScheduleRecipe& recipe) {
  Builder training(inventory, recipe);
  training.PlanTraining();
  return Builder(inventory, recipe).Evaluate(training);
}

}  // namespace muster
