#include "strategies/fit.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/bytes.h"
#include "models/inventory.h"
#include "strategies/compression.h"
#include "strategies/defaults.h"
#include "strategies/hardware.h"
#include "strategies/partition/table.h"
#include "strategies/pipeline/stages.h"

namespace muster::strategies {
namespace {

constexpr uint32_t kMostRanks = 4096;
constexpr size_t kMostAdvice = 4;

// With compression only strategies that sum gradients over replicas are accepted.
Strategy MostSharded(const Train& train) {
  return FsdpOf(Compresses(train.communication()) ? RESHARD_HYBRID : RESHARD_FULL_SHARD);
}

// Strategies that shard more than `train` does, the least sharded first.
std::vector<Strategy> MoreSharded(const Train& train) {
  if (Compresses(train.communication())) {
    if (train.strategy().fsdp().reshard() == RESHARD_HYBRID) return {};
    return {MostSharded(train)};
  }
  std::vector<Strategy> all(4);
  all[0].mutable_zero()->set_stage(1);
  all[1].mutable_zero()->set_stage(2);
  all[2] = FsdpOf(RESHARD_SHARD_GRAD_OP);
  all[3] = FsdpOf(RESHARD_FULL_SHARD);
  const Strategy& s = train.strategy();
  size_t first = 0;
  if (s.has_zero()) first = std::min<size_t>(s.zero().stage(), 3);
  if (s.has_fsdp() && s.fsdp().reshard() != RESHARD_NO_SHARD) first = 3;
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first));
  return all;
}

// Of so many ranks, those with samples of their own.
uint32_t SampleRanks(const Train& train, uint32_t world) {
  const Mesh mesh{.pipeline = std::max(1u, train.parallel().pipeline()),
                  .tensor = std::max(1u, train.parallel().tensor()),
                  .context = std::max(1u, train.parallel().context())};
  return WithReplicasFor(mesh, world).sample_ranks();
}

// Tries ways to run, and records those that fit, with their peaks.
class Advice {
 public:
  Advice(const Inventory& inventory, absl::Span<const RankPlace> ranks, Budget* budget)
      : inventory_(inventory), ranks_(ranks), budget_(budget) {
    for (const RankPlace& rank : ranks) {
      if (rank.memory_bytes > 0 && (smallest_ == 0 || rank.memory_bytes < smallest_)) smallest_ = rank.memory_bytes;
    }
  }

  bool Try(const Train& train, const std::string& what) { return On(train, ranks_, what); }
  // On more ranks, each with the smallest of the given slots, and as many on a node.
  bool Try(const Train& train, uint32_t world, const std::string& what) {
    return On(train, FullNodes(world, PerNode(), smallest_), what);
  }

  std::string Text() const {
    if (!fits_.empty()) return absl::StrCat("it would fit with ", absl::StrJoin(fits_, ", or "));
    if (least_name_.empty()) return "nothing else was tried, since planning it takes too long";
    return absl::StrCat("no configuration fits; of the changes that were tried, ", least_name_,
                        " needs least: use slots of ", FormatBytes(SlotBytesFor(least_)),
                        " with it, or a smaller model");
  }
  bool Enough() const { return exhausted_ || fits_.size() >= kMostAdvice; }
  // Whether a spec may ask for so small a microbatch.
  bool Allowed(const Train& train, uint32_t world) const {
    return uint64_t{Microbatches(train.batch(), SampleRanks(train, world))} *
               static_cast<uint64_t>(inventory_.units_size()) <=
           kMaxUnitMicrobatches;
  }
  uint32_t world() const { return static_cast<uint32_t>(ranks_.size()); }

 private:
  uint32_t PerNode() const {
    uint32_t first = 0;
    for (const RankPlace& rank : ranks_) first += rank.node == ranks_[0].node;
    return first;
  }

  bool On(const Train& train, absl::Span<const RankPlace> ranks, const std::string& what) {
    if (exhausted_ || !Allowed(train, static_cast<uint32_t>(ranks.size()))) return false;
    const absl::StatusOr<MemoryPlan> memory_plan = PlanMemory(train, inventory_, ranks, budget_);
    exhausted_ = absl::IsResourceExhausted(memory_plan.status()) || absl::IsCancelled(memory_plan.status());
    if (!memory_plan.ok()) return false;
    if (least_name_.empty() || memory_plan->peak() < least_) least_ = memory_plan->peak(), least_name_ = what;
    if (!WhyUnfit(*memory_plan, ranks).empty()) return false;
    fits_.push_back(absl::StrCat(what, " (", FormatBytes(memory_plan->peak()), " a rank)"));
    return true;
  }

  const Inventory& inventory_;
  const absl::Span<const RankPlace> ranks_;
  Budget* const budget_;
  bool exhausted_ = false;
  uint64_t smallest_ = 0;
  std::vector<std::string> fits_;
  uint64_t least_ = 0;
  std::string least_name_;
};

// The largest that fits, or none.
bool TryMicrobatches(Train train, const std::string& with, Advice& advice) {
  while (train.batch().microbatch() > 1) {
    train.mutable_batch()->set_microbatch(train.batch().microbatch() / 2);
    if (advice.Enough() || !advice.Allowed(train, advice.world())) return false;
    if (advice.Try(train, absl::StrCat(with, "batch.microbatch ", train.batch().microbatch()))) return true;
  }
  return false;
}

}  // namespace

uint64_t SlotBytesFor(uint64_t peak_bytes) {
  return static_cast<uint64_t>(std::ceil(static_cast<double>(peak_bytes) / kUsable));
}

uint64_t MemoryPlan::peak() const {
  uint64_t peak = 0;
  for (const Memory& memory : by_shard) peak = std::max(peak, memory.peak);
  return peak;
}

namespace {

absl::StatusOr<MemoryPlan> LookOnce(const Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                                    Budget* budget, absl::Span<const pipeline::ChunkPlace> places = {}) {
  absl::StatusOr<Layout> layout = MakeLayout(train, inventory, ranks, budget, places);
  if (!layout.ok()) return layout.status();
  absl::StatusOr<std::vector<RankProgram>> programs = Outline(train, inventory, *layout, budget);
  if (!programs.ok()) return programs.status();
  MemoryPlan memory_plan{.layout = *std::move(layout), .programs = *std::move(programs), .by_shard = {}};
  memory_plan.by_shard = MemoryByShard(train, inventory, memory_plan.layout, memory_plan.programs);
  return memory_plan;
}

// The elements that fit into a slot beside what its rank needs anyway, less a 64th, by which a part of a unit may
// exceed its share.
uint64_t MostElements(uint64_t memory_bytes, uint64_t own, uint64_t peak, uint64_t bytes_an_element) {
  const double fixed = static_cast<double>(peak) - static_cast<double>(own * bytes_an_element);
  const double room = kUsable * static_cast<double>(memory_bytes) - fixed;
  return static_cast<uint64_t>(std::max(1.0, room / static_cast<double>(bytes_an_element) * 63 / 64));
}

// What the rank that lacks most is short of; 0: all fit.
uint64_t MostLacking(const MemoryPlan& memory_plan, absl::Span<const RankPlace> ranks) {
  uint64_t most = 0;
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    const uint64_t needs = SlotBytesFor(memory_plan.of(rank).peak);
    if (ranks[rank].memory_bytes > 0 && needs > ranks[rank].memory_bytes) {
      most = std::max(most, needs - ranks[rank].memory_bytes);
    }
  }
  return most;
}

// With shares by speed that the ranks' memory limits.
absl::StatusOr<MemoryPlan> LookWithin(const Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                                      Budget* budget, absl::Span<const pipeline::ChunkPlace> places = {}) {
  absl::StatusOr<MemoryPlan> memory_plan = LookOnce(train, inventory, ranks, budget, places);
  if (!memory_plan.ok() || MostLacking(*memory_plan, ranks) == 0) return memory_plan;
  if (!SharesBySpeed(train.strategy())) return memory_plan;
  std::vector<uint64_t> bytes;  // by stage
  for (uint32_t stage = 0; stage < memory_plan->programs.size(); ++stage) {
    bytes.push_back(
        BytesAnElement(train, StageModel(inventory, memory_plan->layout, stage), memory_plan->programs[stage]));
    if (bytes.back() == 0) return memory_plan;
  }
  const std::vector<uint64_t> own = partition::OwnedElements(memory_plan->layout.table, inventory);
  std::vector<RankPlace> bounded(ranks.begin(), ranks.end());
  std::set<uint32_t> held;
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].memory_bytes == 0) continue;
    const uint32_t shard = memory_plan->layout.roles[rank].shard();
    bounded[rank].most_elements = MostElements(ranks[rank].memory_bytes, own[shard], memory_plan->of(rank).peak,
                                               bytes[memory_plan->layout.roles[rank].stage()]);
  }
  absl::StatusOr<MemoryPlan> again = LookOnce(train, inventory, bounded, budget, places);
  if (!again.ok()) return again;
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    const uint32_t shard = again->layout.roles[rank].shard();
    const uint64_t most = bounded[rank].most_elements;
    if (most > 0 && again->layout.weights[shard] >= most) held.insert(shard);
  }
  again->held.assign(held.begin(), held.end());
  return again;
}

// How the memory of a pipeline's stages grows with their units, as the plans of some cuts show it.
class StageMemory {
 public:
  StageMemory(const Inventory& inventory, absl::Span<const RankPlace> ranks, std::vector<pipeline::ChunkPlace> stages)
      : units_(pipeline::LoadsOf(inventory)), ranks_(ranks), places_(std::move(stages)), seen_(places_.size()) {}

  // By stage, as CutUnits takes it.
  const std::vector<pipeline::ChunkPlace>& places() const { return places_; }

  void See(const MemoryPlan& memory_plan) {
    std::vector<Seen> now(places_.size());
    const pipeline::StageOfUnit stages = pipeline::StagesOf(memory_plan.layout.table);
    for (size_t u = 0; u < units_.size(); ++u) {
      now[stages[u].stage].elements += units_[u].elements;
      now[stages[u].stage].kept += units_[u].kept_bytes;
    }
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].memory_bytes == 0) continue;
      const Memory& memory = memory_plan.of(rank);
      Seen& of = now[memory_plan.layout.roles[rank].stage()];
      const double left = kUsable * static_cast<double>(ranks_[rank].memory_bytes) - static_cast<double>(memory.peak);
      if (of.peak > 0 && left >= of.left) continue;
      of.left = left, of.peak = static_cast<double>(memory.peak);
      of.activations = static_cast<double>(memory.activations), of.fixed = static_cast<double>(memory.fixed);
    }
    // The same in all stages, but for tensors that are tied to another stage's.
    for (const Seen& of : now) {
      if (of.peak == 0) continue;
      const double average = (of.peak - of.fixed - of.activations) / std::max(1.0, of.elements);
      element_bytes_ = element_bytes_ == 0 ? average : std::min(element_bytes_, average);
    }
    for (size_t stage = 0; stage < now.size(); ++stage) Take(now[stage], stage);
  }

 private:
  // A stage's units, and the rank of it that has least left.
  struct Seen {
    double elements = 0, kept = 0;
    double peak = 0, activations = 0, fixed = 0, left = 0;
  };

  // What kept bytes add is known from the second cut on: what they added from the one before. Until then it counts as
  // nothing, so that a stage is tried with more.
  void Take(const Seen& now, size_t stage) {
    if (now.peak == 0) return;
    pipeline::ChunkPlace& place = places_[stage];
    const Seen& before = seen_[stage];
    place.element_bytes = element_bytes_;
    const double average = now.kept > 0 ? now.activations / now.kept : 0;
    if (before.peak > 0 && before.kept != now.kept) {
      place.kept_times = std::clamp((now.activations - before.activations) / (now.kept - before.kept), 0.0, average);
    }
    place.room_bytes = now.left + place.element_bytes * now.elements + place.kept_times * now.kept;
    seen_[stage] = now;
  }

  const std::vector<pipeline::UnitLoad> units_;
  const absl::Span<const RankPlace> ranks_;
  std::vector<pipeline::ChunkPlace> places_;
  std::vector<Seen> seen_;
  double element_bytes_ = 0;
};

// Whether the stages together have about as much memory as they need: a cut moves it from one to another, and little of
// it goes away.
bool MayFitTogether(const MemoryPlan& memory_plan, absl::Span<const RankPlace> ranks) {
  constexpr double kMostSaved = 1.3;
  double needs = 0, room = 0;
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].memory_bytes == 0) return true;
    needs += static_cast<double>(memory_plan.of(rank).peak);
    room += kUsable * static_cast<double>(ranks[rank].memory_bytes);
  }
  return needs <= kMostSaved * room;
}

// Looks for a cut with which all stages fit.
absl::StatusOr<MemoryPlan> CutForMemory(const Train& train, const Inventory& inventory,
                                        absl::Span<const RankPlace> ranks, MemoryPlan best, Budget* budget) {
  const int most_tries = MayFitTogether(best, ranks) ? 6 : 0;
  uint64_t lacking = MostLacking(best, ranks);
  StageMemory memory(inventory, ranks, StagePlaces(train, ranks));
  memory.See(best);
  std::vector<std::string> tried = {best.layout.table_sha256};
  for (int i = 0; i < most_tries && lacking > 0; ++i) {
    absl::StatusOr<MemoryPlan> next = LookWithin(train, inventory, ranks, budget, memory.places());
    if (absl::IsInvalidArgument(next.status())) break;  // no schedule can move what its stages share
    if (!next.ok()) return next;
    if (std::find(tried.begin(), tried.end(), next->layout.table_sha256) != tried.end()) break;
    tried.push_back(next->layout.table_sha256);
    memory.See(*next);
    if (const uint64_t lacks = MostLacking(*next, ranks); lacks < lacking) best = *std::move(next), lacking = lacks;
  }
  best.no_cut_fits = lacking > 0;
  return best;
}

}  // namespace

bool SumsOverReplicas(const MemoryPlan& memory_plan) {
  return std::any_of(memory_plan.programs.begin(), memory_plan.programs.end(),
                     [](const RankProgram& program) { return SumsOverReplicas(program.schedule); });
}

absl::StatusOr<MemoryPlan> PlanMemory(const Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                                      Budget* budget) {
  absl::StatusOr<MemoryPlan> memory_plan = LookWithin(train, inventory, ranks, budget);
  if (!memory_plan.ok() || MostLacking(*memory_plan, ranks) == 0) return memory_plan;
  if (memory_plan->layout.mesh.pipeline == 1 || !train.pipeline().cut().empty()) return memory_plan;
  return CutForMemory(train, inventory, ranks, *std::move(memory_plan), budget);
}

absl::StatusOr<std::vector<WholeProgram>> CompileWhole(const Train& train, const Inventory& inventory,
                                                       const MemoryPlan& memory_plan, Budget* budget) {
  const Layout& layout = memory_plan.layout;
  // An outline that leaves nothing out is the whole program, and was proven when it was made.
  std::vector<RankProgram> compiled;
  if (memory_plan.programs[0].left_out > 0) {
    absl::StatusOr<std::vector<RankProgram>> all = CompileStages(train, inventory, layout, budget);
    if (!all.ok()) return all.status();
    compiled = *std::move(all);
  }
  std::vector<WholeProgram> whole;
  for (uint32_t stage = 0; stage < memory_plan.programs.size(); ++stage) {
    const RankProgram& outline = memory_plan.programs[stage];
    const StageModel model(inventory, layout, stage);
    if (compiled.empty()) {
      whole.push_back({DigestOf(outline), OpNames(outline.schedule, model.inventory()), outline.schedule.ops.size()});
      continue;
    }
    const RankProgram& program = compiled[stage];
    const std::vector<Op>&some = outline.schedule.ops, &all = program.schedule.ops;
    const auto differ = std::mismatch(some.begin(), some.end(), all.begin(), all.end());
    whole.push_back({program.digest, OpNames(program.schedule, model.inventory()),
                     static_cast<size_t>(differ.first - some.begin())});
  }
  return whole;
}

namespace {

// " (stage 1, h.4 to head)"; empty without a pipeline.
std::string StageText(const Layout& layout, uint32_t rank) {
  if (layout.mesh.pipeline == 1) return "";
  const uint32_t stage = layout.roles[rank].stage();
  std::string text;
  const auto& units = layout.table.units();
  const auto of_stage = [&](int u) { return u >= 0 && u < units.size() && units[u].stage() == stage; };
  for (int u = 0; u < units.size() && units[u].tensor() == 0; ++u) {
    const bool begins = of_stage(u) && (!of_stage(u - 1) || units[u].begins_chunk());
    const bool ends = of_stage(u) && (!of_stage(u + 1) || units[u + 1].begins_chunk() || units[u + 1].tensor() > 0);
    if (begins) absl::StrAppend(&text, ", ", units[u].unit());
    if (ends && !begins) absl::StrAppend(&text, " to ", units[u].unit());
  }
  return absl::StrCat(" (stage ", stage, text, ")");
}

}  // namespace

std::string WhyUnfit(const MemoryPlan& memory_plan, absl::Span<const RankPlace> ranks) {
  std::optional<uint32_t> worst;
  const auto over = [&](uint32_t rank) {
    return static_cast<double>(memory_plan.of(rank).peak) / static_cast<double>(ranks[rank].memory_bytes);
  };
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].memory_bytes == 0 || SlotBytesFor(memory_plan.of(rank).peak) <= ranks[rank].memory_bytes) continue;
    if (!worst.has_value() || over(rank) > over(*worst)) worst = rank;
  }
  if (!worst.has_value()) return "";
  const uint64_t peak = memory_plan.of(*worst).peak;
  return absl::StrCat("rank ", *worst, StageText(memory_plan.layout, *worst), " needs ",
                      FormatBytes(SlotBytesFor(peak)), " (its predicted peak of ", FormatBytes(peak),
                      " and 10% to spare), its slot has ", FormatBytes(ranks[*worst].memory_bytes),
                      memory_plan.no_cut_fits
                          ? absl::StrCat("; no cut into ", memory_plan.layout.mesh.pipeline,
                                         " stages was found that fits, and with this one the stage lacks ",
                                         FormatBytes(SlotBytesFor(peak) - ranks[*worst].memory_bytes))
                          : "");
}

namespace {

// cuda_graphs does not go with any offload, and a pipeline not with that of activations.
void TryOffloadedActivations(const Train& train, Advice& advice) {
  if (train.offload().activations() || train.cuda_graphs() || train.parallel().pipeline() > 1) return;
  Train offloaded = With(train, train.strategy(), true);
  offloaded.mutable_offload()->set_activations(true);
  const std::string with = train.activation_checkpointing() ? "" : "activation_checkpointing: true and ";
  advice.Try(offloaded, absl::StrCat(with, "offload.activations: true"));
}

void TryOffload(Train train, Advice& advice) {
  // compression: auto is refused with it, too.
  if (train.cuda_graphs() || train.has_sync() || NameOf(train.communication().compression()) != "none") return;
  if (!train.offload().optimizer()) {
    train.mutable_offload()->set_optimizer(true);
    if (advice.Try(train, "offload.optimizer: true")) return;
  }
  if (train.offload().parameters() || KeepsAllParameters(train.strategy())) return;
  train.mutable_offload()->set_parameters(true);
  advice.Try(train, "offload.parameters: true");
}

// On twice as many, four times as many, and so on. With a smaller share of the batch a rank may need a smaller
// microbatch.
void TryMoreRanks(const Train& train, bool keeps_microbatch, Advice& advice) {
  Train more = With(train, MostSharded(train), train.activation_checkpointing());
  const std::string strategy = absl::StrCat("strategy ", NameOf(more));
  for (uint32_t world = 2 * advice.world(); world <= kMostRanks && !advice.Enough(); world *= 2) {
    const auto share =
        static_cast<uint32_t>(ShareOf(train.batch().sequences(), SampleRanks(train, world), 0u).sequences);
    std::string what = absl::StrCat("resources.ranks ", world);
    if (share < train.batch().microbatch()) {
      if (keeps_microbatch) return;
      absl::StrAppend(&what, ", batch.microbatch ", share);
    }
    more.mutable_batch()->set_microbatch(std::min(std::max(1u, train.batch().microbatch()), share));
    if (advice.Try(more, world, absl::StrCat(what, " and ", strategy))) return;
  }
}

std::string TryAll(const Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks, Budget* budget) {
  Advice advice(inventory, ranks, budget);
  // With another one the model would learn otherwise.
  const bool keeps_microbatch = models::DependsOnMicrobatches(inventory);
  const bool recomputed = !train.activation_checkpointing() &&
                          advice.Try(With(train, train.strategy(), true), "activation_checkpointing: true");
  if (!keeps_microbatch) TryMicrobatches(train, "", advice);
  if (inventory.device() == DEVICE_CUDA) {
    if (!recomputed) TryOffloadedActivations(train, advice);
    TryOffload(train, advice);
  }
  if (ranks.size() > 1) {
    for (const Strategy& strategy : MoreSharded(train)) {
      const Train sharded = With(train, strategy, train.activation_checkpointing());
      if (advice.Try(sharded, absl::StrCat("strategy ", NameOf(sharded)))) break;
    }
  }
  const Train least = With(train, MostSharded(train), true);
  if (ranks.size() > 1 && !advice.Enough()) {
    if (!advice.Try(least, absl::StrCat("strategy ", NameOf(least))) && !keeps_microbatch) {
      TryMicrobatches(least, absl::StrCat("strategy ", NameOf(least), " and "), advice);
    }
  }
  TryMoreRanks(train, keeps_microbatch, advice);
  return advice.Text();
}

}  // namespace

std::string WhatWouldFit(const Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                         Budget* budget) {
  if (budget == nullptr) return TryAll(train, inventory, ranks, nullptr);
  Budget part = budget->Part(0.5);
  std::string advice = TryAll(train, inventory, ranks, &part);
  budget->Charge(part);
  return advice;
}

std::string NameOf(const Train& train) {
  const Strategy& s = train.strategy();
  std::string name = KindOf(s);
  if (s.has_zero()) absl::StrAppend(&name, " ", s.zero().stage());
  if (s.has_fsdp()) {
    const std::string reshard = Reshard_Name(s.fsdp().reshard());
    absl::StrAppend(&name, " ", absl::AsciiStrToLower(std::string(absl::StripPrefix(reshard, "RESHARD_"))));
  }
  return train.activation_checkpointing() ? absl::StrCat(name, " with activation_checkpointing") : name;
}

Strategy FsdpOf(Reshard reshard) {
  Strategy strategy;
  strategy.mutable_fsdp()->set_reshard(reshard);
  return strategy;
}

Train With(const Train& train, Strategy strategy, bool activation_checkpointing) {
  Train with = train;
  FillDefaults(train.optimizer(), strategy);
  *with.mutable_strategy() = std::move(strategy);
  if (activation_checkpointing || with.has_activation_checkpointing()) {
    with.set_activation_checkpointing(activation_checkpointing);
  }
  return with;
}

}  // namespace muster::strategies
