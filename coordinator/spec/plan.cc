#include "coordinator/spec/plan.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"
#include "common/instruction_set.h"
#include "models/inventory.h"
#include "strategies/cost.h"
#include "strategies/fit.h"
#include "strategies/optimizer_plan.h"
#include "strategies/partition/explain.h"
#include "strategies/partition/table.h"
#include "strategies/schedule/memory.h"

namespace muster::spec {
namespace {

constexpr size_t kMaxPrintedBytes = 256 * 1024;  // of a plan's schedule
constexpr size_t kMaxOps = 20'000;
constexpr size_t kMaxTableBytes = 4 << 20;  // of a plan's table: rows of every tensor on a thousand ranks are more

// The first lines of a long schedule, and how many are left out.
void AddModel(const JobSpec& resolved, const Mesh& mesh, const Inventory& inventory, PlanReply& plan) {
  const Train& train = resolved.train();
  plan.set_parameters(models::Parameters(inventory));
  plan.set_samples_per_step(train.batch().sequences());
  if (inventory.task().name() == models::kLanguageModel) {
    plan.set_tokens_per_step(plan.samples_per_step() * models::TargetsPerSample(inventory));
  }
  plan.set_microbatches(strategies::Microbatches(train.batch(), mesh.data_ranks()));
  double flops = 0;  // of a sample; a backward costs twice a forward
  for (int u = 0, first = models::FirstTrained(inventory); u < inventory.units_size(); ++u) {
    flops += (u < first ? 1 : 3) * inventory.units(u).forward_flops();
  }
  plan.set_flops_per_step(flops * train.batch().sequences());
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
    r.set_fixed_bytes(memory.fixed);
    r.set_peak_bytes(memory.peak);
    r.set_host_bytes(memory.host);
    r.set_slot_bytes(ranks[rank].memory_bytes);
    r.set_shard(memory_plan.layout.roles[rank].shard());
    r.set_replica(memory_plan.layout.roles[rank].replica());
    r.set_stage(memory_plan.layout.roles[rank].stage());
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

// The beginning of the schedule; of one that is outlined, of the part that is as in the whole one.
void AddSchedule(const core::JobPlan& job, PlanReply& plan) {
  // Of a pipeline, the first stage's.
  const Schedule& schedule = job.memory_plan.programs[0].schedule;
  const strategies::WholeProgram& program = job.programs[0];
  const strategies::StageModel model(job.inventory, job.memory_plan.layout, 0);
  const size_t known = std::min(program.outlined, schedule.ops.size());
  std::string text;
  size_t shown = 0;
  for (; shown < known && text.size() < kMaxPrintedBytes; ++shown) {
    absl::StrAppend(&text, Print(schedule.ops[shown], model.inventory()), "\n");
  }
  if (shown < program.names.ops()) {
    absl::StrAppend(&text, "... and ", program.names.ops() - shown, " more ops\n");
  }
  plan.set_schedule(std::move(text));
  plan.set_schedule_digest(program.digest);
}

void AddOps(const core::JobPlan& job, const Timeline& timeline, PlanReply& plan) {
  const Train& train = job.train;
  const strategies::MemoryPlan& memory_plan = job.memory_plan;
  const strategies::StageModel model(job.inventory, memory_plan.layout, 0);
  const Inventory& inventory = model.inventory();
  const Schedule& schedule = memory_plan.programs[0].schedule;
  const strategies::WholeProgram& program = job.programs[0];
  const strategies::Memory& memory = memory_plan.of(0);
  const std::vector<uint64_t> activations = ActivationBytes(
      schedule, inventory,
      strategies::MicrobatchRows(train.batch(), memory_plan.layout.mesh.data_ranks()));
  const uint64_t most = *std::max_element(activations.begin(), activations.end());
  const size_t shown = std::min({schedule.ops.size(), program.outlined, kMaxOps});
  for (size_t i = 0; i < shown; ++i) {
    PlannedOp& op = *plan.add_ops();
    op.set_op(Print(schedule.ops[i], inventory));
    op.set_stream(Name(schedule.ops[i].stream));
    op.set_begin_seconds(timeline.ops[i].begin);
    op.set_end_seconds(timeline.ops[i].end);
    op.set_memory_bytes(memory.peak - most + activations[i]);
  }
  if (program.names.ops() > shown) {
    plan.add_notes(absl::StrCat("only the first ", shown, " of ", program.names.ops(), " ops are shown"));
  }
}

// What a checkpoint takes beside the peak, which is what training itself takes.
void AddCheckpointNote(const strategies::MemoryPlan& memory_plan, const Train& train, const Inventory& inventory,
                       PlanReply& plan) {
  const Checkpoint& checkpoint = train.checkpoint();
  if (checkpoint.path().empty() || (checkpoint.has_async() && !checkpoint.async())) return;
  const PartitionTable& table = memory_plan.layout.table;
  const std::vector<uint64_t> own = partition::OwnedElements(table, inventory),
                              state = strategies::StateBytes(train.optimizer(), inventory, table);
  uint64_t most = 0;
  for (size_t shard = 0; shard < own.size(); ++shard) {
    most = std::max(most, 4 * own[shard] + state[shard]);
  }
  plan.add_notes(absl::StrCat("a checkpoint is written from a copy of up to ", FormatBytes(most),
                              " a rank in its machine's memory, beside the peak; where that is not free, training "
                              "waits until it is written"));
}

// Notes that a nondeterministic job on GPUs does not recover bit for bit.
void AddDeterminismNote(const Train& train, Device device, PlanReply& plan) {
  if (!train.has_deterministic() || train.deterministic() || device == DEVICE_CPU) return;
  plan.add_notes(
      "deterministic: false: GPUs may use kernels whose sums depend on timing, so a run that recovers from a fault "
      "differs in its last bits from an undisturbed one");
}

// As PEFT prints it.
void AddTuningNote(const Inventory& inventory, PlanReply& plan) {
  const uint64_t all = models::Parameters(inventory), trained = models::TrainedParameters(inventory);
  if (trained == all) return;
  plan.add_notes(
      absl::StrFormat("%d of %d parameters are trained (%.3g%%); the others have no gradients and no optimizer state",
                      trained, all, 100 * static_cast<double>(trained) / static_cast<double>(all)));
}

void AddPrecisionNote(const Train& train, Device device, PlanReply& plan) {
  if (train.precision().compute() != DTYPE_FP32 || device == DEVICE_CPU) return;
  if (train.precision().tf32()) {
    plan.add_notes("precision.tf32: true: fp32 GEMMs on GPUs round their inputs to 10 bits of mantissa");
  } else if (device == DEVICE_CUDA) {
    plan.add_notes("fp32 GEMMs on GPUs run without tensor cores; precision: {compute: bf16} or {tf32: true} uses them");
  }
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

PlanFor AnySlots(const JobSpec& resolved, const strategies::Hardware& hardware, uint64_t memory_bytes) {
  return {{strategies::FullNodes(resolved.resources().ranks(), hardware.ranks_per_node, memory_bytes),
           resolved.resources().device(),
           {}},
          hardware};
}

absl::StatusOr<PlanFor> SlotsToPlanFor(const JobSpec& resolved, const core::Slots& placed,
                                       const PlanAssumptions& assumptions) {
  strategies::Hardware hardware = core::HardwareOf(placed.device, placed.model, placed.fast_bf16);
  if (!assumptions.hardware.empty()) {
    absl::StatusOr<strategies::Hardware> found = strategies::FindHardware(assumptions.hardware);
    if (!found.ok()) return found.status();
    hardware = *std::move(found);
  }
  const bool anywhere = placed.ranks.empty() || assumptions.memory_bytes > 0;
  PlanFor on = anywhere ? AnySlots(resolved, hardware, assumptions.memory_bytes) : PlanFor{placed, std::move(hardware)};
  on.ops = assumptions.ops;
  return on;
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

absl::StatusOr<MadePlan> MakePlan(const JobSpec& resolved, const PlanFor& on, strategies::Budget* budget) {
  const absl::StatusOr<core::JobPlan> job = core::PlanJob(resolved, on.slots, on.hardware, budget);
  if (!job.ok()) return job.status();
  const strategies::MemoryPlan& memory_plan = job->memory_plan;
  if (absl::Status status = strategies::SpendOnTimes(memory_plan.programs, budget); !status.ok()) return status;
  const std::vector<RankPlace>& ranks = on.slots.ranks;
  MadePlan made;
  PlanReply& plan = made.reply;
  if (job->choice.has_value()) AddChoice(*job->choice, plan);
  AddModel(resolved, memory_plan.layout.mesh, job->inventory, plan);
  plan.set_strategy(strategies::NameOf(job->train));
  AddTable(memory_plan, job->train, job->inventory, ranks, plan);
  AddSchedule(*job, plan);
  AddRanks(memory_plan, ranks, plan);
  AddCheckpointNote(memory_plan, job->train, job->inventory, plan);
  AddPrecisionNote(job->train, on.slots.device, plan);
  AddTuningNote(job->inventory, plan);
  AddDeterminismNote(job->train, on.slots.device, plan);
  if (job->unfit.has_value()) plan.set_unfit(job->unfit->why);
  const Timeline timeline =
      strategies::PredictStep(job->train, job->inventory, memory_plan.layout, memory_plan.programs, ranks, on.hardware)[0]
          .timeline;
  AddTimes(timeline, on.hardware, *plan.mutable_simulated());
  if (on.ops) AddOps(*job, timeline, plan);
  made.planned = std::make_shared<const core::Planned>(core::PlannedOf(*job));
  return made;
}

}  // namespace muster::spec
