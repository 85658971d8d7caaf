#include "strategies/levels.h"

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "strategies/compile.h"
#include "strategies/cost.h"
#include "strategies/schedule/mesh.h"

namespace muster::strategies {
namespace {

absl::StatusOr<double> StepSeconds(const Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                                   const Hardware& hardware, Budget* budget, const MemoryPlan& plan) {
  if (absl::Status s = SpendOnTimes(plan.programs, budget); !s.ok()) return s;
  const std::vector<Predicted> predicted = PredictStep(train, inventory, plan.layout, plan.programs, ranks, hardware);
  return predicted[SlowestStage(predicted)].timeline.seconds;
}

}  // namespace

absl::Status ChooseLevels(Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                          const Hardware& hardware, Budget* budget, MemoryPlan& plan) {
  if (train.communication().hierarchy() != HIERARCHY_AUTO) return absl::OkStatus();
  Train with = train;
  with.mutable_communication()->set_hierarchy(HIERARCHY_ALWAYS);
  train.mutable_communication()->set_hierarchy(HIERARCHY_NEVER);
  if (LevelGroups(WithLevels(plan.layout.mesh, RanksOnEachNode(ranks))).empty()) return absl::OkStatus();
  absl::StatusOr<MemoryPlan> levels = PlanMemory(with, inventory, ranks, budget);
  if (!levels.ok()) return levels.status();
  if (!WhyUnfit(*levels, ranks).empty() && WhyUnfit(plan, ranks).empty()) return absl::OkStatus();
  const absl::StatusOr<double> flat = StepSeconds(train, inventory, ranks, hardware, budget, plan);
  if (!flat.ok()) return flat.status();
  const absl::StatusOr<double> two = StepSeconds(with, inventory, ranks, hardware, budget, *levels);
  if (!two.ok()) return two.status();
  if (*flat < kLevelsGain * *two) return absl::OkStatus();
  train = std::move(with);
  plan = *std::move(levels);
  return absl::OkStatus();
}

}  // namespace muster::strategies
