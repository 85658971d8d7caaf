#include "coordinator/spec/plan.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"
#include "common/instruction_set.h"
#include "common/some_of.h"
#include "models/inventory.h"
#include "strategies/compression.h"
#include "strategies/cost.h"
#include "strategies/fit.h"
#include "strategies/local_steps.h"
#include "strategies/optimizer_plan.h"
#include "strategies/partition/explain.h"
#include "strategies/partition/table.h"
#include "strategies/pipeline/stages.h"
#include "strategies/schedule/memory.h"

namespace muster::spec {
namespace {

constexpr size_t kMaxPrintedBytes = 256 * 1024;  // of a plan's schedule
constexpr size_t kMaxOps = 20'000;
constexpr size_t kMaxTableBytes = 4 << 20;  // of a plan's table: rows of every tensor on a thousand ranks are more

void AddModel(const Train& train, const Mesh& mesh, const Inventory& inventory, PlanReply& plan) {
  plan.set_parameters(models::Parameters(inventory));
  plan.set_samples_per_step(train.batch().sequences());
  if (inventory.task().name() == models::kLanguageModel) {
    plan.set_tokens_per_step(plan.samples_per_step() * models::WholeTargetsPerSample(inventory));
  }
  plan.set_microbatches(strategies::Microbatches(train.batch(), mesh.sample_ranks()));
  double flops = 0;  // of a rank's part of a sample; a backward costs twice a forward
  for (int u = 0, first = models::FirstTrained(inventory); u < inventory.units_size(); ++u) {
    flops += (u < first ? 1 : 3) * inventory.units(u).forward_flops();
  }
  plan.set_flops_per_step(flops * models::ContextRanks(inventory) * train.batch().sequences());
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
    r.set_tensor(memory_plan.layout.roles[rank].tensor());
    r.set_context(memory_plan.layout.roles[rank].context());
  }
}

// Of links between nodes.
std::string NetworkLine(const PlanFor& on) {
  std::set<uint32_t> nodes;
  for (const RankPlace& rank : on.slots.ranks) nodes.insert(rank.node);
  if (nodes.size() < 2) return "";
  const strategies::Link& link = on.slots.network.has_value() ? *on.slots.network : on.hardware.between;
  std::string line =
      absl::StrCat(on.slots.network.has_value() ? "measured: " : "believed: ", FormatBitRate(link.bytes_per_second),
                   " and ", FormatLatency(link.seconds));
  const strategies::CoreRates& core = on.hardware.core;
  if (core.socket_bytes_per_second > 0) {
    absl::StrAppend(&line, "; a core moves ", FormatBitRate(core.socket_bytes_per_second), " over sockets");
  }
  if (core.compressing.int8 > 0) {
    absl::StrAppend(&line, "; a core compresses a million gradients to int8 in ",
                    FormatLatency(core.compressing.int8 * 1e6));
  }
  return line;
}

void AddTimes(const strategies::Predicted& predicted, const PlanFor& on, Simulated& simulated) {
  const Timeline& timeline = predicted.timeline;
  const strategies::Hardware& hardware = on.hardware;
  simulated.set_network(NetworkLine(on));
  simulated.set_exchanged_seconds(predicted.exchanged);
  simulated.set_hardware(hardware.name);
  simulated.set_assumptions(hardware.assumptions);
  simulated.set_step_seconds(timeline.seconds);
  simulated.set_compute_seconds(timeline.busy[static_cast<size_t>(Stream::kCompute)]);
  const auto busy = [&](Stream stream) { return timeline.busy[static_cast<size_t>(stream)]; };
  simulated.set_gather_seconds(busy(Stream::kGather) + busy(Stream::kGatherBetween));
  simulated.set_reduce_seconds(busy(Stream::kReduce) + busy(Stream::kReduceBetween));
  simulated.set_communication_seconds(timeline.communication);
  simulated.set_exposed_seconds(timeline.exposed);
}

// The beginning of a schedule; of one that is outlined, of the part that is as in the whole one.
std::string BeginningOf(const Schedule& schedule, const strategies::WholeProgram& program, const Inventory& inventory,
                        size_t most_bytes) {
  const size_t known = std::min(program.outlined, schedule.ops.size());
  std::string text;
  size_t shown = 0;
  for (; shown < known && text.size() < most_bytes; ++shown) {
    absl::StrAppend(&text, Print(schedule.ops[shown], inventory), "\n");
  }
  if (shown < program.names.ops()) {
    absl::StrAppend(&text, "... and ", program.names.ops() - shown, " more ops\n");
  }
  return text;
}

void AddSchedules(const core::JobPlan& job, PlanReply& plan) {
  const size_t stages = job.programs.size();
  for (uint32_t stage = 0; stage < stages; ++stage) {
    const strategies::StageModel model(job.inventory, job.memory_plan.layout, stage);
    if (stages > 1) absl::StrAppend(plan.mutable_schedule(), "stage ", stage, ":\n");
    plan.mutable_schedule()->append(BeginningOf(job.memory_plan.programs[stage].schedule, job.programs[stage],
                                                model.inventory(), kMaxPrintedBytes / stages));
  }
  plan.set_schedule_digest(job.programs[0].digest);
}

void AddOps(const core::JobPlan& job, const std::vector<strategies::Predicted>& predicted, PlanReply& plan) {
  const strategies::MemoryPlan& memory_plan = job.memory_plan;
  const Mesh& mesh = memory_plan.layout.mesh;
  const uint32_t rows = strategies::MicrobatchRows(job.train.batch(), mesh.sample_ranks());
  for (uint32_t stage = 0; stage < mesh.pipeline; ++stage) {
    const strategies::StageModel model(job.inventory, memory_plan.layout, stage);
    const Schedule& schedule = memory_plan.programs[stage].schedule;
    const strategies::WholeProgram& program = job.programs[stage];
    const uint64_t peak = memory_plan.of(RankAt(mesh, {.pipeline = stage})).peak;
    const std::vector<uint64_t> activations = ActivationBytes(schedule, model.inventory(), rows);
    const uint64_t most = *std::max_element(activations.begin(), activations.end());
    const size_t shown = std::min({schedule.ops.size(), program.outlined, kMaxOps / mesh.pipeline});
    for (size_t i = 0; i < shown; ++i) {
      const OpTime& time = predicted[stage].timeline.ops[i];
      PlannedOp& op = *plan.add_ops();
      op.set_op(Print(schedule.ops[i], model.inventory()));
      op.set_stream(Name(schedule.ops[i].stream));
      op.set_begin_seconds(time.begin);
      op.set_end_seconds(time.end);
      op.set_memory_bytes(peak - most + activations[i]);
      op.set_stage(stage);
    }
    if (program.names.ops() <= shown) continue;
    const std::string of = mesh.pipeline > 1 ? absl::StrCat(" of stage ", stage) : "";
    plan.add_notes(absl::StrCat("only the first ", shown, " of ", program.names.ops(), " ops", of, " are shown"));
  }
}

// "h.0 to h.3", "wte".
std::string ChunkName(const Inventory& inventory, int begin, int end) {
  const std::string& first = inventory.units(begin).name();
  return end == begin + 1 ? first : absl::StrCat(first, " to ", inventory.units(end - 1).name());
}

// What a stage sends for tensors that stages share: parameters to the one that borrows them, gradients back.
uint64_t TiedBytes(const Inventory& inventory, uint32_t stage, const Train& train) {
  uint64_t bytes = 0;
  for (const TiedTensor& tied : inventory.tied()) {
    const uint64_t elements = models::Elements(tied.tensor());
    if (tied.owner_stage() == stage) {
      bytes += elements * strategies::DtypeBytes(train.precision().compute());
    } else if (!tied.tensor().frozen()) {
      bytes += 4 * elements;
    }
  }
  return bytes;
}

void AddStages(const core::JobPlan& job, const std::vector<strategies::Predicted>& predicted, PlanReply& plan) {
  const strategies::Layout& layout = job.memory_plan.layout;
  if (layout.mesh.pipeline == 1) return;
  const uint64_t sequences = strategies::ShareOf(job.train.batch().sequences(), layout.mesh, 0).sequences;
  const uint64_t width = strategies::DtypeBytes(job.train.precision().compute());
  const int first_trained = models::FirstTrained(job.inventory);  // no gradient goes further back
  const pipeline::StageOfUnit places = pipeline::StagesOf(layout.table);
  std::vector<double> flops(layout.mesh.pipeline);  // of a sample, by stage
  std::vector<uint64_t> parameters(layout.mesh.pipeline);
  for (int u = 0; u < job.inventory.units_size(); ++u) {
    const Unit& unit = job.inventory.units(u);
    flops[places[u].stage] += unit.forward_flops();
    for (const Tensor& tensor : unit.tensors()) parameters[places[u].stage] += models::Elements(tensor);
  }
  const double all_flops = std::accumulate(flops.begin(), flops.end(), 0.0);
  for (uint32_t stage = 0; stage < layout.mesh.pipeline; ++stage) {
    const strategies::StageModel model(job.inventory, layout, stage);
    const Inventory& inventory = model.inventory();
    StagePlan& of = *plan.add_stages();
    of.set_stage(stage);
    of.set_units(static_cast<uint32_t>(inventory.units_size()));
    of.set_parameters(parameters[stage]);
    of.set_flops_share(all_flops > 0 ? flops[stage] / all_flops : 0);
    // The middle chunks of a V lie on one stage: nothing is sent between them.
    const auto elsewhere = [&](uint32_t unit) { return places[unit].stage != stage; };
    uint64_t handed_on = 0;
    for (int c = 0; c < inventory.chunks_size(); ++c) {
      const Chunk& chunk = inventory.chunks(c);
      const int begin = static_cast<int>(chunk.begin());
      const int end =
          c + 1 < inventory.chunks_size() ? static_cast<int>(inventory.chunks(c + 1).begin()) : inventory.units_size();
      of.add_chunks(ChunkName(inventory, begin, end));
      const uint32_t model_end = chunk.model_begin() + static_cast<uint32_t>(end - begin);
      if (static_cast<int>(chunk.model_begin()) > first_trained && elsewhere(chunk.model_begin() - 1)) {
        handed_on += models::OutputBytes(chunk.inputs(), width);
      }
      if (model_end < inventory.model_units() && elsewhere(model_end)) {
        handed_on += models::OutputBytes(inventory.units(end - 1), width);
      }
    }
    of.set_sent_bytes(handed_on * sequences + TiedBytes(inventory, stage, job.train));
    for (uint32_t shard = 0; shard < layout.mesh.shard; ++shard) {
      for (uint32_t tensor = 0; tensor < layout.mesh.tensor; ++tensor) {
        const uint32_t owner = OwnerAt(layout.mesh, {.pipeline = stage, .shard = shard, .tensor = tensor});
        of.set_peak_bytes(std::max(of.peak_bytes(), job.memory_plan.by_shard[owner].peak));
      }
    }
    const Timeline& timeline = predicted[stage].timeline;
    const double compute = timeline.busy[static_cast<size_t>(Stream::kCompute)];
    of.set_compute_seconds(compute);
    of.set_bubble(timeline.seconds > 0 ? std::max(0.0, 1 - compute / timeline.seconds) : 0);
    of.set_exposed_seconds(timeline.exposed);
    of.set_schedule_digest(job.programs[stage].digest);
  }
}

// "4 stages of 2 ranks: each lies on one node; of 3 boundaries between neighboring stages 1 crosses nodes".
void AddStagePlaces(const Mesh& mesh, absl::Span<const RankPlace> ranks, PlanReply& plan) {
  if (mesh.pipeline == 1) return;
  const uint32_t each = mesh.ranks_of_stage();
  uint32_t divided = 0, crossing = 0;
  for (uint32_t stage = 0; stage < mesh.pipeline; ++stage) {
    bool divides = false, crosses = false;
    const bool last = stage + 1 == mesh.pipeline;
    const absl::Span<const RankPlace> own = OfStage(mesh, ranks, stage),
                                      next = OfStage(mesh, ranks, last ? stage : stage + 1);
    for (uint32_t i = 0; i < each; ++i) {
      divides |= own[i].node != own[0].node;
      crosses |= own[i].node != next[i].node;
    }
    divided += divides ? 1 : 0, crossing += crosses ? 1 : 0;
  }
  plan.add_placement(absl::StrCat(mesh.pipeline, " stages of ", each, each == 1 ? " rank: " : " ranks: ",
                                  divided == 0
                                      ? "each lies on one node"
                                      : absl::StrCat(divided, divided == 1 ? " lies" : " lie", " on several nodes"),
                                  "; activations and gradients cross nodes at ", crossing, " of ", mesh.pipeline - 1,
                                  mesh.pipeline == 2 ? " boundary" : " boundaries", " between stages"));
}

// "which share a node", of the groups along the axis; on nodes that the planner was given, several may be of several.
std::string PlacesOf(const Mesh& mesh, Axes axis, const std::vector<RankPlace>& ranks) {
  const std::vector<std::vector<uint32_t>> groups = GroupsOf(mesh, {.axes = axis});
  const auto crossing = std::count_if(groups.begin(), groups.end(), [&](const std::vector<uint32_t>& group) {
    const auto elsewhere = [&](uint32_t rank) { return ranks[rank].node != ranks[group[0]].node; };
    return std::any_of(group.begin(), group.end(), elsewhere);
  });
  return crossing == 0 ? "which share a node"
                       : absl::StrCat("and ", crossing, " of ", groups.size(), " such groups lie on several nodes");
}

void AddGroupPlaces(const Mesh& mesh, const std::vector<RankPlace>& ranks, PlanReply& plan) {
  if (mesh.tensor > 1) {
    plan.add_placement(absl::StrCat("each unit is computed by ", mesh.tensor, " ranks together, ",
                                    PlacesOf(mesh, kTensorAxis, ranks)));
  }
  if (mesh.context > 1) {
    plan.add_placement(
        absl::StrCat("each sequence is divided among ", mesh.context, " ranks, ", PlacesOf(mesh, kContextAxis, ranks)));
  }
}

// "two levels: sums over replicas of 4 ranks run inside 2 nodes, ...", or why hierarchy: always has no effect.
void AddLevelPlaces(const Train& train, const Mesh& mesh, const std::vector<RankPlace>& ranks, PlanReply& plan) {
  std::set<uint32_t> nodes;
  for (const RankPlace& rank : ranks) nodes.insert(rank.node);
  const bool shards = mesh.shard_levels(), replicas = mesh.replica_levels();
  if (shards || replicas) {
    const uint32_t inside = shards ? mesh.shards_inside : mesh.replicas_inside,
                   all = shards ? mesh.shard : mesh.replica,
                   between = shards ? mesh.shards_between() : mesh.replicas_between();
    plan.add_placement(absl::StrCat("two levels: ", shards ? "gathers and reductions" : "sums over replicas", " of ",
                                    all, " ranks run inside ", between, " nodes, among ", inside,
                                    " ranks, and between them, among ", between));
  } else if (train.communication().hierarchy() == HIERARCHY_ALWAYS && nodes.size() > 1) {
    plan.add_placement(absl::StrCat(
        "hierarchy: always has no effect: ",
        strategies::RanksOnEachNode(ranks) == 0
            ? "the nodes have different numbers of ranks"
            : "each group that gathers or reduces together lies on one node, has one rank on each of its nodes, or "
              "has different numbers of ranks on them"));
  }
}

// "sums over replicas travel as top_k 1/100 in bf16: a rank sends 23.4 KiB a step instead of 3.4 MiB"; of the stage
// that sums most. Or why compression has no effect.
void AddCompression(const core::JobPlan& job, PlanReply& plan) {
  if (!job.compression_reason.empty()) plan.add_notes(job.compression_reason);
  const Compression& compression = job.train.communication().compression();
  if (!strategies::Compresses(job.train.communication())) return;
  const strategies::MemoryPlan& memory_plan = job.memory_plan;
  const Mesh& mesh = memory_plan.layout.mesh;
  if (!strategies::SumsOverReplicas(memory_plan)) {
    plan.add_notes("communication.compression has no effect: no gradients are summed over replicas");
    return;
  }
  uint64_t sent = 0, exact = 0;
  for (uint32_t stage = 0; stage < mesh.pipeline; ++stage) {
    const strategies::StageModel model(job.inventory, memory_plan.layout, stage);
    uint64_t its_sent = 0, its_exact = 0;
    for (const Op& op : memory_plan.programs[stage].schedule.ops) {
      if (op.kind != OpKind::kAllReduce) continue;
      const uint32_t ranks = mesh.replicas_between();
      const auto by_shard =
          strategies::SummedRanges(model.table(), model.inventory(), op, mesh.replicas_inside, /*place=*/0);
      for (const strategies::SummedRange& range : by_shard[0]) {
        its_sent += strategies::SentBytes(compression, range.elements, range.parts, ranks);
        its_exact += strategies::SentBytes(Compression(), range.elements, range.parts, ranks);
      }
    }
    if (its_exact > exact) sent = its_sent, exact = its_exact;
  }
  plan.add_notes(absl::StrCat("sums over replicas travel as ", strategies::NameOf(compression), ": a rank sends ",
                              FormatBytes(sent), " a step instead of ", FormatBytes(exact)));
}

// "2 replicas of 4 ranks train by themselves; a rank sends 812 KiB to each other replica every 50 steps, and keeps 6.4
// MiB for that in host memory"; and how long it takes.
void AddSync(const core::JobPlan& job, const PlanFor& on, PlanReply& plan) {
  if (!job.train.has_sync()) return;
  const Sync& sync = job.train.sync();
  const strategies::ReplicaExchange exchange =
      strategies::PredictExchange(job.train, job.inventory, job.memory_plan.layout, on.slots.device, on.slots.ranks,
                                  on.hardware, plan.simulated().step_seconds());
  const size_t ranks = job.memory_plan.layout.roles.size();
  const auto bytes = [](double count) { return FormatBytes(static_cast<uint64_t>(count)); };
  plan.add_notes(absl::StrCat(sync.replicas(), " replicas of ", ranks, ranks == 1 ? " rank" : " ranks",
                              " train by themselves; a rank sends ", bytes(exchange.sent_bytes),
                              " to each other replica every ",
                              sync.every() == 1 ? "step" : absl::StrCat(sync.every(), " steps"),
                              sync.fragments() == 1 ? "" : absl::StrCat(", in ", sync.fragments(), " parts"),
                              ", and keeps ", bytes(exchange.kept_bytes), " for that in host memory"));
  plan.mutable_simulated()->set_exchange_seconds(exchange.seconds);
  plan.mutable_simulated()->set_mean_step_seconds(plan.simulated().step_seconds() + exchange.step_seconds);
}

// Stages idle while a pipeline fills and drains.
void AddBubbleNote(const Train& train, const Mesh& mesh, PlanReply& plan) {
  const uint32_t microbatches = strategies::Microbatches(train.batch(), mesh.sample_ranks());
  if (mesh.pipeline == 1 || microbatches >= mesh.pipeline) return;
  plan.add_notes(absl::StrCat(microbatches, microbatches == 1 ? " microbatch" : " microbatches", " a step for ",
                              mesh.pipeline, " stages: stages idle in every step; lower batch.microbatch or raise ",
                              "batch.sequences, to several microbatches for each stage"));
}

// Ranks that get no sample of any step.
void AddIdleNote(const Train& train, const Mesh& mesh, PlanReply& plan) {
  const uint32_t readers = mesh.sample_ranks(), sequences = train.batch().sequences();
  if (sequences == 0 || sequences >= readers) return;
  const uint32_t idle = (readers - sequences) * (mesh.ranks() / readers);
  plan.add_notes(absl::StrCat(idle, " of ", mesh.ranks(), idle == 1 ? " ranks is" : " ranks are",
                              " idle in every step: batch.sequences is ", sequences, " for ", readers,
                              readers == mesh.ranks() ? " ranks" : " groups of ranks", "; raise it to at least ",
                              readers, ", or lower resources.ranks"));
}

// What a checkpoint takes beside the peak, which is what training itself takes.
void AddCheckpointNote(const strategies::MemoryPlan& memory_plan, const Train& train, const Inventory& inventory,
                       PlanReply& plan) {
  const Checkpoint& checkpoint = train.checkpoint();
  if (checkpoint.path().empty() || (checkpoint.has_async() && !checkpoint.async())) return;
  const Mesh& mesh = memory_plan.layout.mesh;
  const Compression& compression = train.communication().compression();
  uint64_t most = 0;
  for (uint32_t stage = 0; stage < mesh.pipeline; ++stage) {
    const bool sums = strategies::SumsOverReplicas(memory_plan.programs[stage].schedule),
               compresses = sums && strategies::Compresses(train.communication());
    const Optimizer applied = strategies::AppliedOptimizer(train, sums);
    const uint64_t kept = !compresses ? 0 : compression.top_k().momentum_correction() ? 8 : 4;  // of an element
    for (uint32_t tensor = 0; tensor < mesh.tensor; ++tensor) {
      const strategies::StageModel model(inventory, memory_plan.layout, stage, tensor);
      const std::vector<uint64_t> own = partition::OwnedElements(model.table(), model.inventory()),
                                  state = strategies::StateBytes(applied, model.inventory(), model.table());
      for (size_t shard = 0; shard < own.size(); ++shard) {
        most = std::max(most, 4 * own[shard] + state[shard] + kept * own[shard] / mesh.replicas_inside);
      }
    }
  }
  plan.add_notes(absl::StrCat("a checkpoint is written from a copy of up to ", FormatBytes(most),
                              " a rank in host memory, in addition to the peak; where that is not free, training "
                              "waits for the write"));
}

// Notes that a nondeterministic job on GPUs does not recover bit for bit.
void AddDeterminismNote(const Train& train, Device device, PlanReply& plan) {
  if (!train.has_deterministic() || train.deterministic() || device == DEVICE_CPU) return;
  plan.add_notes(
      "deterministic: false: GPUs may use kernels whose sums depend on timing, so a run that recovers from a fault "
      "differs in its last bits from an undisturbed one");
}

void AddGraphsNote(const Train& train, Device device, PlanReply& plan) {
  if (!train.cuda_graphs() || device == DEVICE_CPU) return;
  plan.add_notes(
      "cuda_graphs: true has not run on a GPU yet; a graph keeps the memory of a step's activations, so that of "
      "validation comes on top of the planned peak, and a hang is reported by step, not by op");
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

// Of an exec job: where its ranks run is all that can be said.
MadePlan PlanProgram(const PlanFor& on) {
  const auto ranks = static_cast<uint32_t>(on.slots.ranks.size());
  MadePlan made;
  made.planned = std::make_shared<const core::Planned>(core::PlannedOfProgram(ranks));
  made.reply.set_schedule_digest(made.planned->digests[0]);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    RankPlan& r = *made.reply.add_ranks();
    r.set_rank(rank);
    r.set_replica(rank);
    r.set_slot_bytes(on.slots.ranks[rank].memory_bytes);
  }
  return made;
}

void AddChoice(const strategies::Choice& choice, PlanReply& plan) {
  plan.set_strategy_reason(choice.reason);
  if (!choice.stopped.empty()) plan.add_notes(choice.stopped);
  for (const strategies::Candidate& candidate : choice.candidates) {
    CandidatePlan& c = *plan.add_candidates();
    c.set_strategy(candidate.name);
    c.set_peak_bytes(candidate.peak_bytes);
    c.set_step_seconds(candidate.step_seconds);
    c.set_unfit(candidate.unfit);
    c.set_lost(candidate.lost);
    c.set_least(candidate.least);
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
  strategies::Hardware hardware = core::HardwareFor(placed);
  bool anywhere = placed.ranks.empty() || assumptions.memory_bytes > 0;
  if (!assumptions.hardware.empty()) {
    absl::StatusOr<strategies::Hardware> found = strategies::FindHardware(assumptions.hardware);
    if (!found.ok()) return found.status();
    anywhere |= found->sharing != hardware.sharing;  // nodes with slots on CPUs say nothing of nodes with GPUs
    hardware = *std::move(found);
  }
  PlanFor on = anywhere ? AnySlots(resolved, hardware, assumptions.memory_bytes) : PlanFor{placed, std::move(hardware)};
  if (!assumptions.hardware.empty()) on.slots.network.reset(), on.slots.core = {};
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
    notes.push_back(absl::StrCat("bf16 GEMMs ", how, " on ", SomeOf(on, kNamed)));
  };
  note("are native", native);
  note("go through fp32 panels, at about the speed of fp32,", panels);
  return notes;
}

absl::StatusOr<MadePlan> MakePlan(const JobSpec& resolved, const PlanFor& on, strategies::Budget* budget) {
  if (resolved.has_exec()) return PlanProgram(on);
  const absl::StatusOr<core::JobPlan> job = core::PlanJob(resolved, on.slots, on.hardware, budget);
  if (!job.ok()) return job.status();
  const strategies::MemoryPlan& memory_plan = job->memory_plan;
  if (absl::Status status = strategies::SpendOnTimes(memory_plan.programs, budget); !status.ok()) return status;
  const std::vector<RankPlace>& ranks = on.slots.ranks;
  MadePlan made;
  PlanReply& plan = made.reply;
  if (job->choice.has_value()) AddChoice(*job->choice, plan);
  if (!job->bucket_reason.empty()) plan.add_notes(job->bucket_reason);
  AddCompression(*job, plan);
  AddModel(job->train, memory_plan.layout.mesh, job->inventory, plan);
  plan.set_strategy(job->choice.has_value() ? job->choice->candidates[job->choice->chosen].name
                                            : strategies::NameOf(job->train));
  AddTable(memory_plan, job->train, job->inventory, ranks, plan);
  AddStagePlaces(memory_plan.layout.mesh, ranks, plan);
  AddGroupPlaces(memory_plan.layout.mesh, ranks, plan);
  AddLevelPlaces(job->train, memory_plan.layout.mesh, ranks, plan);
  AddSchedules(*job, plan);
  AddRanks(memory_plan, ranks, plan);
  AddIdleNote(job->train, memory_plan.layout.mesh, plan);
  AddBubbleNote(job->train, memory_plan.layout.mesh, plan);
  AddCheckpointNote(memory_plan, job->train, job->inventory, plan);
  AddPrecisionNote(job->train, on.slots.device, plan);
  AddTuningNote(job->inventory, plan);
  AddDeterminismNote(job->train, on.slots.device, plan);
  AddGraphsNote(job->train, on.slots.device, plan);
  if (job->unfit.has_value()) plan.set_unfit(job->unfit->why);
  const std::vector<strategies::Predicted> predicted =
      strategies::PredictStep(job->train, job->inventory, memory_plan.layout, memory_plan.programs, ranks, on.hardware);
  AddTimes(predicted[strategies::SlowestStage(predicted)], on, *plan.mutable_simulated());
  AddSync(*job, on, plan);
  AddStages(*job, predicted, plan);
  if (on.ops) AddOps(*job, predicted, plan);
  made.planned = std::make_shared<const core::Planned>(core::PlannedOf(*job));
  return made;
}

}  // namespace muster::spec
