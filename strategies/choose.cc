#include "strategies/choose.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"
#include "strategies/choose_mesh.h"

namespace muster::strategies {
namespace {

constexpr double kTie = 1.02;

bool SeveralEqualNodes(absl::Span<const RankPlace> ranks) {
  std::map<uint32_t, uint32_t> of_node;
  for (const RankPlace& rank : ranks) ++of_node[rank.node];
  return of_node.size() > 1 && of_node.begin()->second > 1 &&
         std::all_of(of_node.begin(), of_node.end(),
                     [&](const auto& node) { return node.second == of_node.begin()->second; });
}

// Of a pipeline, so in every stage, with equally many ranks on the nodes of all stages.
bool GoesByNodes(const Train& train, absl::Span<const RankPlace> ranks) {
  const Mesh mesh =
      WithReplicasFor({.pipeline = std::max(1u, train.parallel().pipeline())}, static_cast<uint32_t>(ranks.size()));
  const auto on_first_node = [&](uint32_t stage) {
    const absl::Span<const RankPlace> own = OfStage(mesh, ranks, stage);
    return std::count_if(own.begin(), own.end(), [&](const RankPlace& rank) { return rank.node == own[0].node; });
  };
  for (uint32_t stage = 0; stage < mesh.pipeline; ++stage) {
    if (!SeveralEqualNodes(OfStage(mesh, ranks, stage)) || on_first_node(stage) != on_first_node(0)) return false;
  }
  return true;
}

std::vector<Train> Ways(const Train& train, absl::Span<const RankPlace> ranks) {
  std::vector<Train> ways;
  for (const Strategy& strategy : DataStrategies(train, ranks)) {
    ways.push_back(With(train, strategy, train.activation_checkpointing()));
  }
  if (!train.has_activation_checkpointing()) {
    const bool alone = ways[0].strategy().has_single();
    ways.push_back(With(train, alone ? ways[0].strategy() : FsdpOf(RESHARD_FULL_SHARD), true));
  }
  return ways;
}

std::string Reason(const Choice& choice, const Hardware& hardware) {
  const Candidate& chosen = choice.candidates[choice.chosen];
  const std::string name = NameOf(chosen.train);
  if (!choice.fits) {
    return absl::StrCat("no configuration fits; the smallest tried, ", name, ", needs ", FormatBytes(chosen.peak_bytes),
                        " a rank: ", chosen.unfit);
  }
  std::vector<std::string> slower, unfit;
  for (const Candidate& candidate : choice.candidates) {
    if (&candidate == &chosen) continue;
    if (candidate.unfit.empty()) {
      slower.push_back(absl::StrCat(NameOf(candidate.train), " ", TimeText(candidate.step_seconds)));
    } else {
      unfit.push_back(absl::StrCat(NameOf(candidate.train), " ", FormatBytes(SlotBytesFor(candidate.peak_bytes))));
    }
  }
  std::string reason = absl::StrCat(name, ", ", TimeText(chosen.step_seconds), " a step predicted on ", hardware.name,
                                    " and ", FormatBytes(chosen.peak_bytes), " a rank");
  if (!slower.empty()) absl::StrAppend(&reason, "; others that fit: ", absl::StrJoin(slower, ", "));
  if (!unfit.empty()) absl::StrAppend(&reason, "; does not fit: ", absl::StrJoin(unfit, ", "));
  return reason;
}

std::string WhyLost(const Candidate& loser, const Candidate& winner) {
  if (!loser.unfit.empty()) return absl::StrCat("does not fit: ", loser.unfit);
  const double more = loser.step_seconds - winner.step_seconds;
  const double share = 100 * more / winner.step_seconds;
  if (std::abs(share) < 0.05) return kAsFast;
  if (more > 0) return absl::StrCat(TimeText(more), absl::StrFormat(" more, %.1f%%", share));
  return absl::StrFormat("%.1f%% faster, but less simple", -share);
}

}  // namespace

std::vector<Strategy> DataStrategies(const Train& train, absl::Span<const RankPlace> ranks) {
  std::vector<Strategy> all(1);
  if (ranks.size() == uint64_t{std::max(1u, train.parallel().pipeline())} * std::max(1u, train.parallel().tensor())) {
    all[0].mutable_single();
    return all;
  }
  all[0].mutable_ddp();
  for (const uint32_t stage : {1u, 2u}) all.emplace_back().mutable_zero()->set_stage(stage);
  all.push_back(FsdpOf(RESHARD_SHARD_GRAD_OP));
  all.push_back(FsdpOf(RESHARD_FULL_SHARD));
  if (GoesByNodes(train, ranks)) all.push_back(FsdpOf(RESHARD_HYBRID));
  if (train.offload().parameters()) std::erase_if(all, KeepsAllParameters);
  return all;
}

std::string TimeText(double seconds) {
  if (seconds < 1) return absl::StrFormat("%.3g ms", 1e3 * seconds);
  return seconds < 1000 ? absl::StrFormat("%.3g s", seconds) : FormatSpan(absl::Seconds(seconds));
}

absl::StatusOr<Choice> Choose(const Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                              const Hardware& hardware, Budget* budget) {
  if (train.parallel().auto_()) return ChooseMesh(train, inventory, ranks, hardware, budget);
  Choice choice;
  for (Train& way : Ways(train, ranks)) {
    absl::StatusOr<MemoryPlan> memory_plan = PlanMemory(way, inventory, ranks, budget);
    if (!memory_plan.ok()) return memory_plan.status();
    if (absl::Status status = SpendOnTimes(memory_plan->programs, budget); !status.ok()) return status;
    Candidate& candidate = choice.candidates.emplace_back();
    candidate.peak_bytes = memory_plan->peak();
    candidate.unfit = WhyUnfit(*memory_plan, ranks);
    candidate.step_seconds =
        PredictStep(way, inventory, memory_plan->layout, memory_plan->programs, ranks, hardware)[0].timeline.seconds;
    candidate.name = NameOf(way);
    candidate.train = std::move(way);
  }
  const auto less = [](const Candidate& a, const Candidate& b) { return a.peak_bytes < b.peak_bytes; };
  const auto least = std::min_element(choice.candidates.begin(), choice.candidates.end(), less);
  choice.least_peak = least->peak_bytes;
  choice.chosen = static_cast<size_t>(least - choice.candidates.begin());
  double fastest = 0;
  for (const Candidate& candidate : choice.candidates) {
    if (!candidate.unfit.empty()) continue;
    fastest = choice.fits ? std::min(fastest, candidate.step_seconds) : candidate.step_seconds;
    choice.fits = true;
  }
  for (size_t c = 0; choice.fits && c < choice.candidates.size(); ++c) {
    const Candidate& candidate = choice.candidates[c];
    if (!candidate.unfit.empty() || candidate.step_seconds > kTie * fastest) continue;
    choice.chosen = c;
    break;
  }
  for (size_t c = 0; c < choice.candidates.size(); ++c) {
    if (c != choice.chosen) choice.candidates[c].lost = WhyLost(choice.candidates[c], choice.candidates[choice.chosen]);
  }
  // Made once more: all of them together are large.
  absl::StatusOr<MemoryPlan> chosen = PlanMemory(choice.train(), inventory, ranks, budget);
  if (!chosen.ok()) return chosen.status();
  choice.memory_plan = *std::move(chosen);
  choice.reason = Reason(choice, hardware);
  return choice;
}

}  // namespace muster::strategies
