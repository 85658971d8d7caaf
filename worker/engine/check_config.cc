#include "worker/engine/check_config.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "strategies/optimizer_plan.h"
#include "strategies/partition/table.h"
#include "strategies/schedule/check.h"
#include "worker/engine/recorded_step.h"

namespace muster::engine {
namespace {

absl::Status CheckTensors(const Inventory& inventory) {
  std::set<std::string> names;
  for (const Unit& unit : inventory.units()) {
    for (const Tensor& tensor : unit.tensors()) {
      if (!names.insert(tensor.name()).second) {
        return absl::InvalidArgumentError("the inventory has two tensors of one name");
      }
    }
  }
  return absl::OkStatus();
}

// What is fetched after a step goes where the parameters stay.
bool IsGather(const Op& op) {
  return Traits(op.kind).slots == SlotPool::kParameters &&
         (op.slot >= 0 || Traits(op.kind).parameters == ParameterUse::kGather);
}

// Checked because views into slots are created only once.
absl::Status CheckSlots(const Config& config) {
  std::map<int32_t, int32_t> slots;
  for (const Op& op : config.schedule.ops) {
    for (int32_t u = op.unit; IsGather(op) && u < op.unit_end; ++u) slots[u] = op.slot;
  }
  for (const Op& op : config.evaluation.ops) {
    for (int32_t u = op.unit; IsGather(op) && u < op.unit_end; ++u) {
      if (slots.contains(u) && slots.at(u) == op.slot) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("evaluation: ", Print(op, config.inventory), ": training gathers it into another slot"));
    }
  }
  return absl::OkStatus();
}

// Whether this rank is in the op's group, or in both that it stands for.
bool HasGroup(const Config& config, int32_t group) {
  if (group < 0) return true;
  if (group == kContextTensorGroup) return HasGroup(config, kContextGroup) && HasGroup(config, kTensorGroup);
  return group < static_cast<int32_t>(config.groups.size()) && config.groups[group] != nullptr;
}

absl::Status CheckOps(const Config& config, absl::FunctionRef<bool(OpKind)> runs) {
  for (const Schedule* schedule : {&config.schedule, &config.evaluation}) {
    const bool evaluation = schedule == &config.evaluation;
    for (const Op& op : schedule->ops) {
      const auto name = [&] { return absl::StrCat(evaluation ? "evaluation, " : "", Print(op, config.inventory)); };
      // An evaluation has no gradients, and its loss is summed by the engine.
      if (!runs(op.kind) || (evaluation && Traits(op.kind).scope == OpScope::kStep)) {
        return absl::UnimplementedError(absl::StrCat("this engine cannot execute ", name()));
      }
      if (!HasGroup(config, op.group)) {
        return absl::InvalidArgumentError(absl::StrCat("no group for ", name()));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckConfig(const Config& config, absl::FunctionRef<bool(OpKind)> runs) {
  if (absl::Status s = partition::Check(config.table, config.inventory); !s.ok()) return s;
  if (absl::Status s = strategies::CheckWhole(config.train.optimizer(), config.inventory, config.table); !s.ok()) {
    return s;
  }
  if (absl::Status s = Check(config.schedule, config.inventory); !s.ok() && !config.unproven) {
    return absl::InvalidArgumentError(s.message());
  }
  if (absl::Status s = Check(config.evaluation, config.inventory); !s.ok() && !config.unproven) {
    return absl::InvalidArgumentError(absl::StrCat("evaluation: ", s.message()));
  }
  if (absl::Status s = CheckSlots(config); !s.ok()) return s;
  if (absl::Status s = CheckTensors(config.inventory); !s.ok()) return s;
#ifndef MUSTER_CUDA
  if (config.cuda) {
    return absl::FailedPreconditionError(
        "this trainer is built without CUDA: build with --config=cuda, or ask for resources.device: cpu");
  }
#endif
  if (config.recorded) {
    if (absl::Status s = CheckRecorded(config); !s.ok()) return s;
  }
  return CheckOps(config, runs);
}

}  // namespace muster::engine
