#include "coordinator/core/planner.h"

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/instruction_set.h"
#include "models/inventory.h"
#include "strategies/choose.h"
#include "strategies/compile.h"
#include "strategies/fit.h"

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

absl::StatusOr<Planned> PlanByStrategies(const JobSpec& spec, const Slots& slots) {
  const auto inventory = models::MakeInventory(spec.train().model());
  if (!inventory.ok()) return inventory.status();
  Planned planned;
  Train train = spec.train();
  uint64_t least_peak = 0;
  absl::StatusOr<strategies::MemoryPlan> memory_plan;
  if (train.strategy().has_auto_()) {
    auto choice =
        strategies::Choose(train, *inventory, slots.ranks, HardwareOf(slots.device, slots.model, slots.fast_bf16));
    if (!choice.ok()) return choice.status();
    train = choice->train();
    planned.strategy = train.strategy();
    planned.activation_checkpointing = train.activation_checkpointing();
    planned.strategy_reason = choice->reason;
    least_peak = choice->least_peak;
    memory_plan = std::move(choice->memory_plan);
  } else {
    memory_plan = strategies::PlanMemory(train, *inventory, slots.ranks);
  }
  if (!memory_plan.ok()) {
    // Other slots may work: hybrid needs equally many ranks on every node.
    const std::string why(memory_plan.status().message());
    memory_plan =
        strategies::PlanMemory(train, *inventory, strategies::AnyPlaces(static_cast<uint32_t>(slots.ranks.size())));
    if (!memory_plan.ok()) return memory_plan.status();
    planned.unfit = {why, 0};
  } else if (const std::string why = strategies::WhyUnfit(*memory_plan, slots.ranks); !why.empty()) {
    if (least_peak == 0 && !DependsOnOtherSlots(train.strategy())) least_peak = memory_plan->peak();
    planned.unfit = {absl::StrCat(why, "; ", strategies::WhatWouldFit(train, *inventory, slots.ranks)),
                     least_peak == 0 ? 0 : strategies::SlotBytesFor(least_peak)};
  }
  planned.digests.assign(slots.ranks.size(), memory_plan->program.digest);
  planned.table = std::move(memory_plan->layout.table);
  planned.table_sha256 = std::move(memory_plan->layout.table_sha256);
  planned.roles = std::move(memory_plan->layout.roles);
  return planned;
}

std::string NameOpByStrategies(const JobSpec& spec, const Slots& slots, uint64_t index) {
  const auto inventory = models::MakeInventory(spec.train().model());
  if (!inventory.ok()) return "";
  const auto memory_plan = strategies::PlanMemory(spec.train(), *inventory, slots.ranks);
  if (!memory_plan.ok() || index >= memory_plan->program.schedule.ops.size()) return "";
  // What it does, without the buffers and streams that it needs for it.
  const Op& op = memory_plan->program.schedule.ops[index];
  return Print(Op{.kind = op.kind, .unit = op.unit, .unit_end = op.unit_end, .microbatch = op.microbatch}, *inventory);
}

}  // namespace muster::core
