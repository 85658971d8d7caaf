#include "coordinator/spec/plan.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"
#include "common/instruction_set.h"
#include "models/inventory.h"
#include "strategies/choose.h"
#include "strategies/cost.h"
#include "strategies/fit.h"
#include "strategies/partition/explain.h"
#include "strategies/partition/table.h"
#include "strategies/schedule/memory.h"

namespace muster::spec {
namespace {

constexpr size_t kMaxPrintedBytes = 256 * 1024;  // of a plan's schedule
constexpr size_t kMaxOps = 20'000;
constexpr size_t kMaxTableBytes = 4 << 20;  // of a plan's table: rows of every tensor on a thousand ranks are more

// The first lines of a long schedule, and how many are left out.
std::string Shown(std::string schedule) {
  if (schedule.size() <= kMaxPrintedBytes) return schedule;
  const size_t end = schedule.rfind('\n', kMaxPrintedBytes) + 1;
  const auto more = std::count(schedule.begin() + static_cast<std::ptrdiff_t>(end), schedule.end(), '\n');
  schedule.resize(end);
  return absl::StrCat(schedule, "... and ", more, " more ops\n");
}

void AddModel(const JobSpec& resolved, size_t ranks, const Inventory& inventory, PlanReply& plan) {
  const Train& train = resolved.train();
  plan.set_parameters(models::Parameters(inventory));
  plan.set_tokens_per_step(uint64_t{train.batch().sequences()} * inventory.context());
  plan.set_microbatches(strategies::Microbatches(train.batch(), static_cast<uint32_t>(ranks)));
  double forward = 0;
  for (const Unit& unit : inventory.units()) forward += unit.forward_flops();
  plan.set_flops_per_step(3 * forward * train.batch().sequences());  // a backward costs twice a forward
}

// "shares by measured speed, 12.1 to 48 GFLOP/s; ..."
std::string SpeedLine(const strategies::MemoryPlan& memory_plan, const std::vector<RankPlace>& ranks) {
  double least = std::numeric_limits<double>::infinity(), most = 0;
  size_t unknown = 0;
  for (const RankPlace& rank : ranks) {
    unknown += rank.flops_per_second > 0 ? 0 : 1;
    if (rank.flops_per_second <= 0) continue;
    least = std::min(least, rank.flops_per_second);
    most = std::max(most, rank.flops_per_second);
  }
  if (unknown == ranks.size()) {
    return "shares by measured speed: none is known yet of these slots, so they are equal; the ranks measure it when "
           "they start, for the job's next generation and for other jobs";
  }
  std::string line = absl::StrFormat("shares by measured speed, %.3g to %.3g GFLOP/s", least / 1e9, most / 1e9);
  if (unknown > 0) {
    absl::StrAppend(&line, "; of ", unknown, unknown == 1 ? " rank it is" : " ranks it is",
                    " not known, which counts as the mean");
  }
  if (!memory_plan.held.empty()) {
    absl::StrAppend(&line, "; shard ", absl::StrJoin(memory_plan.held, ", "),
                    memory_plan.held.size() == 1 ? " is held" : " are held",
                    " to what their slots' memory takes, the others have the rest");
  }
  return line;
}

void AddTable(const strategies::MemoryPlan& memory_plan, const Train& train, const Inventory& inventory,
              const std::vector<RankPlace>& ranks, PlanReply& plan) {
  const strategies::Layout& layout = memory_plan.layout;
  plan.set_table_sha256(layout.table_sha256);
  if (layout.table.ByteSizeLong() <= kMaxTableBytes) *plan.mutable_table() = layout.table;
  const bool by_speed = strategies::SharesBySpeed(train.strategy());
  for (std::string& line :
       partition::Lines(partition::Explain(layout.table, inventory, layout.weights), by_speed ? "speed" : "memory")) {
    plan.add_placement(std::move(line));
  }
  if (by_speed) plan.add_placement(SpeedLine(memory_plan, ranks));
}

void AddRanks(const strategies::MemoryPlan& memory_plan, const std::vector<RankPlace>& ranks, PlanReply& plan) {
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    const strategies::Memory& memory = memory_plan.of(rank);
    RankPlan& r = *plan.add_ranks();
    r.set_rank(rank);
    r.set_parameter_bytes(memory.parameters);
    r.set_gradient_bytes(memory.gradients);
    r.set_optimizer_bytes(memory.optimizer_state);
    r.set_gather_bytes(memory.gather_buffers);
    r.set_reduce_bytes(memory.reduce_buffers);
    r.set_activation_bytes(memory.activations);
    r.set_peak_bytes(memory.peak);
    r.set_slot_bytes(ranks[rank].memory_bytes);
    r.set_shard(memory_plan.layout.roles[rank].shard());
    r.set_replica(memory_plan.layout.roles[rank].replica());
  }
}

void AddTimes(const Timeline& timeline, const strategies::Hardware& hardware, Simulated& simulated) {
  simulated.set_hardware(hardware.name);
  simulated.set_assumptions(hardware.assumptions);
  simulated.set_step_seconds(timeline.seconds);
  simulated.set_compute_seconds(timeline.busy[static_cast<size_t>(Stream::kCompute)]);
  simulated.set_gather_seconds(timeline.busy[static_cast<size_t>(Stream::kGather)]);
  simulated.set_reduce_seconds(timeline.busy[static_cast<size_t>(Stream::kReduce)]);
  simulated.set_communication_seconds(timeline.communication);
  simulated.set_exposed_seconds(timeline.exposed);
}

void AddOps(const Train& train, const Inventory& inventory, const strategies::MemoryPlan& memory_plan,
            const Timeline& timeline, PlanReply& plan) {
  const Schedule& schedule = memory_plan.program.schedule;
  const strategies::Memory& memory = memory_plan.of(0);
  const std::vector<uint64_t> activations = ActivationBytes(
      schedule, inventory,
      strategies::MicrobatchRows(train.batch(), static_cast<uint32_t>(memory_plan.layout.roles.size())));
  const uint64_t most = *std::max_element(activations.begin(), activations.end());
  for (size_t i = 0; i < std::min(schedule.ops.size(), kMaxOps); ++i) {
    PlannedOp& op = *plan.add_ops();
    op.set_op(Print(schedule.ops[i], inventory));
    op.set_stream(Name(schedule.ops[i].stream));
    op.set_begin_seconds(timeline.ops[i].begin);
    op.set_end_seconds(timeline.ops[i].end);
    op.set_memory_bytes(memory.peak - most + activations[i]);
  }
  if (schedule.ops.size() > kMaxOps) {
    plan.add_notes(absl::StrCat("only the first ", kMaxOps, " of ", schedule.ops.size(), " ops are shown"));
  }
}

// What a checkpoint takes beside the peak, which is what training itself takes.
void AddCheckpointNote(const strategies::MemoryPlan& memory_plan, const Train& train, const Inventory& inventory,
                       PlanReply& plan) {
  const Checkpoint& checkpoint = train.checkpoint();
  if (checkpoint.path().empty() || (checkpoint.has_async() && !checkpoint.async())) return;
  const PartitionTable& table = memory_plan.layout.table;
  const std::vector<uint64_t> own = partition::OwnedElements(partition::OwnedUnits(table, inventory), table.shards());
  uint64_t most = 0;
  for (size_t shard = 0; shard < own.size(); ++shard) {
    most = std::max(most, 4 * own[shard] + memory_plan.by_shard[shard].optimizer_state);
  }
  plan.add_notes(absl::StrCat("a checkpoint is written from a copy of up to ", FormatBytes(most),
                              " a rank in its machine's memory, beside the peak; where that is not free, training "
                              "waits until it is written"));
}

void AddChoice(const strategies::Choice& choice, PlanReply& plan) {
  plan.set_strategy_reason(choice.reason);
  for (const strategies::Candidate& candidate : choice.candidates) {
    CandidatePlan& c = *plan.add_candidates();
    c.set_strategy(strategies::NameOf(candidate.train));
    c.set_peak_bytes(candidate.peak_bytes);
    c.set_step_seconds(candidate.step_seconds);
    c.set_unfit(candidate.unfit);
  }
}

}  // namespace

PlanFor AnySlots(const JobSpec& resolved, const strategies::Hardware& hardware) {
  return {strategies::FullNodes(resolved.resources().ranks(), hardware.ranks_per_node, 0), hardware};
}

std::vector<std::string> Bf16Notes(const std::map<std::string, Cpu>& cpus) {
  constexpr size_t kNamed = 3;
  std::vector<std::string> native, panels, notes;
  for (const auto& [node, cpu] : cpus) {
    const std::optional<InstructionSet> set = InstructionSetOfName(cpu.instruction_set());
    if (!set.has_value()) continue;
    const std::string limited = cpu.limited_by().empty() ? "" : absl::StrCat(" by ", cpu.limited_by());
    (HasFastBf16(*set) ? native : panels).push_back(absl::StrCat(node, " (", cpu.instruction_set(), limited, ")"));
  }
  const auto note = [&](absl::string_view how, const std::vector<std::string>& on) {
    if (on.empty()) return;
    const auto end = on.begin() + static_cast<ptrdiff_t>(std::min(on.size(), kNamed));
    notes.push_back(absl::StrCat("bf16 GEMMs ", how, " on ", absl::StrJoin(on.begin(), end, ", "),
                                 on.size() > kNamed ? absl::StrCat(" and ", on.size() - kNamed, " more") : ""));
  };
  note("are native", native);
  note("go through fp32 panels, at about the speed of fp32,", panels);
  return notes;
}

absl::StatusOr<PlanReply> MakePlan(const JobSpec& resolved, const PlanFor& on) {
  const auto inventory = models::MakeInventory(resolved.train().model());
  if (!inventory.ok()) return inventory.status();
  PlanReply plan;
  *plan.mutable_resolved() = resolved;
  Train train = resolved.train();
  absl::StatusOr<strategies::MemoryPlan> memory_plan;
  if (train.strategy().has_auto_()) {
    auto choice = strategies::Choose(train, *inventory, on.ranks, on.hardware);
    if (!choice.ok()) return choice.status();
    AddChoice(*choice, plan);
    train = choice->train();
    memory_plan = std::move(choice->memory_plan);
  } else {
    memory_plan = strategies::PlanMemory(train, *inventory, on.ranks);
  }
  if (!memory_plan.ok()) return memory_plan.status();
  AddModel(resolved, on.ranks.size(), *inventory, plan);
  plan.set_strategy(strategies::NameOf(train));
  AddTable(*memory_plan, train, *inventory, on.ranks, plan);
  plan.set_schedule(Shown(Print(memory_plan->program.schedule, *inventory)));
  plan.set_schedule_digest(memory_plan->program.digest);
  AddRanks(*memory_plan, on.ranks, plan);
  AddCheckpointNote(*memory_plan, train, *inventory, plan);
  if (const std::string why = strategies::WhyUnfit(*memory_plan, on.ranks); !why.empty()) {
    plan.set_unfit(absl::StrCat(why, "; ", strategies::WhatWouldFit(train, *inventory, on.ranks)));
  }
  const Timeline timeline =
      strategies::PredictStep(train, *inventory, memory_plan->layout, memory_plan->program, on.ranks, on.hardware)
          .timeline;
  AddTimes(timeline, on.hardware, *plan.mutable_simulated());
  if (on.ops) AddOps(train, *inventory, *memory_plan, timeline, plan);
  return plan;
}

}  // namespace muster::spec
