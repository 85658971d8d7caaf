#include "coordinator/core/job_plan.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/instruction_set.h"
#include "common/sha256.h"
#include "models/inventory.h"
#include "strategies/choose_communication.h"
#include "strategies/choose_mesh.h"
#include "strategies/compile.h"
#include "strategies/ddp/ddp.h"
#include "strategies/partition/flat.h"

namespace muster::core {
namespace {

// A rank's share is not known before all slots are: by their memory, or by the nodes that they lie on.
bool DependsOnOtherSlots(const Strategy& strategy) {
  const Fsdp& fsdp = strategy.fsdp();
  return strategy.zero().placement() == PLACEMENT_RAGGED || fsdp.placement() == PLACEMENT_RAGGED ||
         (fsdp.reshard() == RESHARD_HYBRID && fsdp.shard_ranks() == 0);
}

// The least memory of a slot; 0: of none it is known.
uint64_t SmallestOf(const Slots& slots) {
  uint64_t smallest = 0;
  for (const RankPlace& rank : slots.ranks) {
    if (rank.memory_bytes > 0 && (smallest == 0 || rank.memory_bytes < smallest)) smallest = rank.memory_bytes;
  }
  return smallest;
}

// A sum of a bucket over N nodes passes 2 (N - 1) links one after another, and sends 2 (N - 1) / N of the bucket over
// each. With buckets of `kTimesLatency` N latency bandwidth, so many times as long is spent on sending as on latency.
// Small buckets overlap better, so this counts only where the default is less, and half of the gradients is the most.
constexpr double kTimesLatency = 5;

// Sets bucket_mib where the spec leaves it out and the network asks for more than the default. Why; empty: it does not.
std::string FitBucket(const Inventory& inventory, const Slots& slots, Train& train) {
  Strategy& strategy = *train.mutable_strategy();
  const bool ddp = strategy.has_ddp() && !strategy.ddp().has_bucket_mib();
  const bool zero = strategy.has_zero() && strategy.zero().stage() < 3 && !strategy.zero().has_bucket_mib();
  if (!slots.network.has_value() || (!ddp && !zero)) return "";
  std::set<uint32_t> nodes;
  for (const RankPlace& rank : slots.ranks) nodes.insert(rank.node);
  const double wanted =
      kTimesLatency * static_cast<double>(nodes.size()) * slots.network->seconds * slots.network->bytes_per_second;
  const double most = 4.0 * static_cast<double>(partition::FlatElements(inventory)) / 2;
  const double mib = std::ceil(std::min(wanted, most) / (1 << 20));
  if (mib * (1 << 20) <= static_cast<double>(ddp::DefaultBucketBytes(inventory))) return "";
  if (ddp) strategy.mutable_ddp()->set_bucket_mib(mib);
  if (zero) strategy.mutable_zero()->set_bucket_mib(mib);
  return absl::StrCat("gradients are reduced in buckets of ", mib, " MiB, because the links between ", nodes.size(),
                      " nodes have ", FormatLatency(slots.network->seconds), " of latency at ",
                      FormatBitRate(slots.network->bytes_per_second));
}

}  // namespace

bool HasFastBf16(const Cpu& cpu) {
  const std::optional<InstructionSet> set = InstructionSetOfName(cpu.instruction_set());
  return set.has_value() && muster::HasFastBf16(*set);
}

strategies::Hardware HardwareOf(Device device, const std::string& model, bool fast_bf16) {
  if (device != DEVICE_CUDA) return *strategies::FindHardware(fast_bf16 ? "cpu-bf16" : "cpu");
  const std::string lower = absl::AsciiStrToLower(model);
  for (const char* name : {"h200", "h100", "a100"}) {
    if (absl::StrContains(lower, name)) return *strategies::FindHardware(name);
  }
  if (absl::StrContains(lower, "4090")) return *strategies::FindHardware("rtx4090");
  return *strategies::FindHardware("h100");
}

strategies::Hardware HardwareFor(const Slots& slots) {
  strategies::Hardware hardware = HardwareOf(slots.device, slots.model, slots.fast_bf16);
  if (!slots.network.has_value()) return hardware;
  std::map<uint32_t, uint32_t> on_node;
  uint32_t most = 1;
  for (const RankPlace& rank : slots.ranks) most = std::max(most, ++on_node[rank.node]);
  hardware.between = *slots.network;
  if (slots.device != DEVICE_CUDA) hardware.between.bytes_per_second /= most, hardware.core = slots.core;
  return hardware;
}

std::string SignatureOf(const Slots& slots) {
  std::string signature = absl::StrCat(slots.model, slots.fast_bf16 ? " bf16" : "");
  for (const RankPlace& rank : slots.ranks) {
    absl::StrAppend(&signature, "/", rank.node, ":", rank.memory_bytes, ":", rank.flops_per_second);
  }
  if (slots.network.has_value()) {
    absl::StrAppend(&signature, "@", slots.network->bytes_per_second, ":", slots.network->seconds);
    const strategies::Compressing& compressing = slots.core.compressing;
    absl::StrAppend(&signature, ":", slots.core.socket_bytes_per_second, ":", compressing.top_k, ":",
                    compressing.power_sgd, ":", compressing.int8);
  }
  return signature;
}

uint32_t StagesOf(const JobSpec& spec) { return std::max(1u, spec.train().parallel().pipeline()); }
uint32_t TensorRanksOf(const JobSpec& spec) { return std::max(1u, spec.train().parallel().tensor()); }
uint32_t ContextRanksOf(const JobSpec& spec) { return std::max(1u, spec.train().parallel().context()); }
uint32_t LeastGroupOf(const JobSpec& spec) { return StagesOf(spec) * TensorRanksOf(spec) * ContextRanksOf(spec); }

std::string PlanKey(const JobSpec& spec, const Slots& slots) {
  // Programs are planned alike: Muster only places them.
  if (spec.has_exec()) return Sha256Hex(absl::StrCat("exec/", slots.device, "/", SignatureOf(slots)));
  Train train = spec.train();
  train.clear_data();
  train.clear_steps();
  train.clear_seed();
  train.clear_validation();
  train.clear_bench();
  // Replicas of a run are planned alike.
  if (train.has_sync()) train.mutable_sync()->clear_run(), train.mutable_sync()->clear_replica();
  train.mutable_model()->clear_from();
  // Whether there are checkpoints, and whether they are copied, is all that a plan says of them.
  Checkpoint checkpoint;
  if (!train.checkpoint().path().empty()) checkpoint.set_path("/");
  if (train.checkpoint().has_async()) checkpoint.set_async(train.checkpoint().async());
  *train.mutable_checkpoint() = checkpoint;
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  {
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    train.SerializeToCodedStream(&coded);
  }
  return Sha256Hex(absl::StrCat(bytes, "/", slots.device, "/", SignatureOf(slots)));
}

absl::StatusOr<JobPlan> PlanJob(const JobSpec& spec, const Slots& slots, const strategies::Hardware& hardware,
                                strategies::Budget* budget) {
  absl::StatusOr<Inventory> inventory = models::MakeInventory(spec.train(), slots.device);
  if (!inventory.ok()) return inventory.status();
  JobPlan plan{.inventory = *std::move(inventory), .train = spec.train()};
  uint64_t least_peak = 0;
  bool unfit_by_memory = false;
  absl::StatusOr<strategies::MemoryPlan> memory_plan;
  if (plan.train.strategy().has_auto_()) {
    auto choice = strategies::Choose(plan.train, plan.inventory, slots.ranks, hardware, budget);
    if (!choice.ok()) return choice.status();
    plan.by_mesh = plan.train.parallel().auto_();
    plan.train = choice->train();
    if (plan.by_mesh) {
      inventory = models::MakeInventory(plan.train, slots.device);
      if (!inventory.ok()) return inventory.status();
      plan.inventory = *std::move(inventory);
    }
    least_peak = choice->least_peak;
    memory_plan = std::move(choice->memory_plan);
    plan.choice = *std::move(choice);
    Train fitted = plan.train;
    if (std::string why = FitBucket(plan.inventory, slots, fitted); !why.empty()) {
      auto with_bucket = strategies::PlanMemory(fitted, plan.inventory, slots.ranks, budget);
      if (with_bucket.ok() && strategies::WhyUnfit(*with_bucket, slots.ranks).empty()) {
        plan.train = std::move(fitted);
        plan.bucket_reason = std::move(why);
        memory_plan = std::move(with_bucket);
      }
    }
  } else {
    plan.bucket_reason = FitBucket(plan.inventory, slots, plan.train);
    memory_plan = strategies::PlanMemory(plan.train, plan.inventory, slots.ranks, budget);
  }
  if (memory_plan.ok()) {
    absl::Status chosen =
        strategies::ChooseLevels(plan.train, plan.inventory, slots.ranks, hardware, budget, *memory_plan);
    if (chosen.ok()) {
      chosen = strategies::ChooseCompression(plan.train, plan.inventory, slots.ranks, hardware, budget, *memory_plan,
                                             plan.compression_reason);
    }
    if (!chosen.ok()) return chosen;
  }
  if (absl::IsInvalidArgument(memory_plan.status())) {
    // Other slots may work: hybrid needs equally many ranks on every node.
    const std::string why(memory_plan.status().message());
    memory_plan = strategies::PlanMemory(plan.train, plan.inventory,
                                         strategies::AnyPlaces(static_cast<uint32_t>(slots.ranks.size())), budget);
    if (memory_plan.ok()) plan.unfit = {why, 0};
  } else if (memory_plan.ok()) {
    if (const std::string why = strategies::WhyUnfit(*memory_plan, slots.ranks); !why.empty()) {
      unfit_by_memory = true;
      if (plan.by_mesh) {
        // Not all ways to run are planned, so smaller slots may suit it than the best of these needs. Slots of like
        // machines differ by less than this.
        const uint64_t smallest = SmallestOf(slots);
        plan.unfit = {why, smallest + smallest / 64, strategies::SlotBytesFor(memory_plan->peak())};
      } else {
        if (least_peak == 0 && !DependsOnOtherSlots(plan.train.strategy())) least_peak = memory_plan->peak();
        plan.unfit = {why, least_peak == 0 ? 0 : strategies::SlotBytesFor(least_peak)};
      }
    }
  }
  if (!memory_plan.ok()) return memory_plan.status();
  plan.memory_plan = *std::move(memory_plan);
  absl::StatusOr<std::vector<strategies::WholeProgram>> programs =
      strategies::CompileWhole(plan.train, plan.inventory, plan.memory_plan, budget);
  if (!programs.ok()) return programs.status();
  plan.programs = *std::move(programs);
  if (unfit_by_memory) {
    Train asked = plan.train;
    if (const auto& compression = spec.train().communication().compression(); compression.has_auto_()) {
      *asked.mutable_communication()->mutable_compression() = compression;  // it is chosen again for other plans
    }
    plan.unfit->advice = strategies::WhatWouldFit(asked, plan.inventory, slots.ranks, budget);
    absl::StrAppend(&plan.unfit->why, "; ", plan.unfit->advice);
  }
  return plan;
}

Planned PlannedOfProgram(uint32_t ranks) {
  Planned planned;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    RankRole& role = planned.roles.emplace_back();
    role.set_rank(rank);
    role.set_replica(rank);
  }
  planned.digests = {"exec"};
  planned.op_names.emplace_back();
  return planned;
}

Planned PlannedOf(const JobPlan& plan) {
  Planned planned;
  planned.table = plan.memory_plan.layout.table;
  planned.table_sha256 = plan.memory_plan.layout.table_sha256;
  planned.roles = plan.memory_plan.layout.roles;
  for (const strategies::WholeProgram& program : plan.programs) {
    planned.digests.push_back(program.digest);
    planned.op_names.push_back(program.names);
  }
  planned.unfit = plan.unfit;
  if (plan.choice.has_value()) {
    planned.strategy = plan.train.strategy();
    planned.activation_checkpointing = plan.train.activation_checkpointing();
    planned.strategy_reason = plan.choice->reason;
    if (plan.by_mesh) planned.chosen = strategies::ChosenOf(plan.train);
  }
  if (!plan.bucket_reason.empty()) {
    planned.strategy = plan.train.strategy();
    planned.activation_checkpointing = plan.train.activation_checkpointing();
    absl::StrAppend(&planned.strategy_reason, planned.strategy_reason.empty() ? "" : "; ", plan.bucket_reason);
  }
  if (!plan.compression_reason.empty()) {
    planned.compression = plan.train.communication().compression();
    absl::StrAppend(&planned.strategy_reason, planned.strategy_reason.empty() ? "" : "; ", plan.compression_reason);
  }
  return planned;
}

}  // namespace muster::core
