#include "strategies/choose_communication.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "strategies/compile.h"
#include "strategies/compression.h"
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

absl::Status ChooseCompression(Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                               const Hardware& hardware, Budget* budget, MemoryPlan& plan, std::string& reason) {
  Compression& asked = *train.mutable_communication()->mutable_compression();
  if (!asked.has_auto_()) return absl::OkStatus();
  asked.mutable_none();
  if (!SumsOverReplicas(plan)) {
    reason = "compression auto: none, because no gradients are summed over replicas";
    return absl::OkStatus();
  }
  if (train.parallel().tensor() > 1 || train.offload().optimizer()) {
    reason = absl::StrCat("compression auto: none, because ",
                          train.offload().optimizer() ? "offload.optimizer" : "parallel.tensor",
                          " is not supported with it");
    return absl::OkStatus();
  }
  const absl::StatusOr<double> exact = StepSeconds(train, inventory, ranks, hardware, budget, plan);
  if (!exact.ok()) return exact.status();
  Train with = train;
  Compression& int8 = *with.mutable_communication()->mutable_compression();
  int8.mutable_int8();
  FillDefaults(train.optimizer(), int8);
  absl::StatusOr<MemoryPlan> compressed = PlanMemory(with, inventory, ranks, budget);
  if (!compressed.ok()) return compressed.status();
  const absl::StatusOr<double> seconds = StepSeconds(with, inventory, ranks, hardware, budget, *compressed);
  if (!seconds.ok()) return seconds.status();
  const bool fits = WhyUnfit(*compressed, ranks).empty() || !WhyUnfit(plan, ranks).empty();
  if (fits && *exact >= kCompressionGain * *seconds) {
    train = std::move(with);
    plan = *std::move(compressed);
  }
  reason = absl::StrCat("compression auto: ", NameOf(train.communication().compression()), ", because a step takes ",
                        FormatLatency(*seconds), " with int8, and ", FormatLatency(*exact), " without");
  return absl::OkStatus();
}

}  // namespace muster::strategies
