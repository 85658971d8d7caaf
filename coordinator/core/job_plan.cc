#include "coordinator/core/job_plan.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/instruction_set.h"
#include "common/sha256.h"
#include "models/inventory.h"
#include "strategies/choose_mesh.h"
#include "strategies/compile.h"
#include "strategies/levels.h"

namespace muster::core {
namespace {

// A rank's share is not known before all slots are: by their memory, or by the nodes that they lie on.
bool DependsOnOtherSlots(const Strategy& strategy) {
  const Fsdp& fsdp = strategy.fsdp();
  return strategy.zero().placement() == PLACEMENT_RAGGED || fsdp.placement() == PLACEMENT_RAGGED ||
         (fsdp.reshard() == RESHARD_HYBRID && fsdp.shard_ranks() == 0);
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

std::string SignatureOf(const Slots& slots) {
  std::string signature = absl::StrCat(slots.model, slots.fast_bf16 ? " bf16" : "");
  for (const RankPlace& rank : slots.ranks) {
    absl::StrAppend(&signature, "/", rank.node, ":", rank.memory_bytes, ":", rank.flops_per_second);
  }
  return signature;
}

uint32_t StagesOf(const JobSpec& spec) { return std::max(1u, spec.train().parallel().pipeline()); }
uint32_t TensorRanksOf(const JobSpec& spec) { return std::max(1u, spec.train().parallel().tensor()); }

std::string PlanKey(const JobSpec& spec, const Slots& slots) {
  Train train = spec.train();
  train.clear_data();
  train.clear_steps();
  train.clear_seed();
  train.clear_validation();
  train.clear_bench();
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
      if (absl::Status s = models::Divide(plan.train, plan.inventory); !s.ok()) return s;
    }
    least_peak = choice->least_peak;
    memory_plan = std::move(choice->memory_plan);
    plan.choice = *std::move(choice);
  } else {
    memory_plan = strategies::PlanMemory(plan.train, plan.inventory, slots.ranks, budget);
  }
  if (memory_plan.ok()) {
    absl::Status chosen =
        strategies::ChooseLevels(plan.train, plan.inventory, slots.ranks, hardware, budget, *memory_plan);
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
      if (least_peak == 0 && !DependsOnOtherSlots(plan.train.strategy())) least_peak = memory_plan->peak();
      unfit_by_memory = true;
      plan.unfit = {why, least_peak == 0 ? 0 : strategies::SlotBytesFor(least_peak)};
    }
  }
  if (!memory_plan.ok()) return memory_plan.status();
  plan.memory_plan = *std::move(memory_plan);
  absl::StatusOr<std::vector<strategies::WholeProgram>> programs =
      strategies::CompileWhole(plan.train, plan.inventory, plan.memory_plan, budget);
  if (!programs.ok()) return programs.status();
  plan.programs = *std::move(programs);
  if (unfit_by_memory) {
    absl::StrAppend(&plan.unfit->why, "; ", strategies::WhatWouldFit(plan.train, plan.inventory, slots.ranks, budget));
  }
  return plan;
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
  return planned;
}

}  // namespace muster::core
