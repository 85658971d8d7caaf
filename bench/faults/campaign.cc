#include "bench/faults/campaign.h"

#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/faults/figures.h"
#include "tests/cluster/cluster.h"
#include "tests/faults/daemon_fault.h"
#include "tests/faults/rank_fault.h"

namespace muster::faults {
namespace {

const std::vector<std::string> kStrategies = {"ddp", "zero1", "zero3", "fsdp"};
const std::vector<std::string> kPhases = {"data", "forward", "gather", "backward", "reduce", "optimizer", "checkpoint"};
const std::vector<DaemonFaultKind> kDaemonFaults = {DaemonFaultKind::kKillWorker, DaemonFaultKind::kFreezeWorker,
                                                    DaemonFaultKind::kLoseHost, DaemonFaultKind::kKillCoordinator};

class Campaign {
 public:
  explicit Campaign(const CampaignOptions& options) : options_(options), random_(options.seed) {
    cluster_.coordinator_flags = {absl::StrCat("--detection=", absl::FormatDuration(options.detection))};
    cluster_.StartCoordinator();
    for (int worker = 0; worker < 2; ++worker) cluster_.StartWorker(worker, 3 * options.at_once);
  }

  bool Run() {
    const int of_daemons = options_.faults / 8, of_ranks = options_.faults - of_daemons;
    for (int done = 0; done < of_ranks; done += options_.at_once) {
      StrikeRanks(done, std::min(options_.at_once, of_ranks - done));
    }
    for (int i = 0; i < of_daemons; ++i) StrikeDaemon(kDaemonFaults[static_cast<size_t>(i) % kDaemonFaults.size()]);
    std::printf("\n%d faults, detection %s\n", options_.faults, absl::FormatDuration(options_.detection).c_str());
    figures_.Print();
    std::printf("weights bit-equal to an undisturbed run: %d of %d; the right rank named: %d of %d; failed: %d\n",
                equal_, compared_, named_, to_name_, failed_);
    return failed_ == 0 && equal_ == compared_;
  }

 private:
  template <typename T>
  const T& Pick(const std::vector<T>& from) {
    return from[random_() % from.size()];
  }

  // Cycles through phases and strategies, so that few faults cover many combinations; the rest is random.
  RankFault Choose(int number) {
    RankFault fault;
    fault.phase = kPhases[static_cast<size_t>(number) % kPhases.size()];
    fault.strategy = Pick(kStrategies);
    while (!HasPhase(fault.strategy, fault.phase)) fault.strategy = Pick(kStrategies);
    fault.kind = random_() % 2 == 0 ? FaultKind::kKill : FaultKind::kFreeze;
    fault.ranks = 2 + static_cast<int>(random_() % 2);
    // With ddp only the first rank writes.
    const bool first = fault.phase == "checkpoint" && fault.strategy == "ddp";
    fault.victim = first ? 0 : static_cast<uint32_t>(random_() % static_cast<uint64_t>(fault.ranks));
    fault.step = 5 + random_() % 90;
    return fault;
  }

  const std::string& Undisturbed(const std::string& strategy, int ranks) {
    std::string& weights = undisturbed_[{strategy, ranks}];
    if (weights.empty()) {
      const std::string name = absl::StrCat("calm-", strategy, "-", ranks);
      cluster_.WaitForState(cluster_.Submit(JobOf(strategy, ranks, name)), "completed");
      weights = cluster_.FinalWeights(name).second;
    }
    return weights;
  }

  void StrikeRanks(int first, int count) {
    std::vector<std::pair<RankFault, std::unique_ptr<RankFaultTrial>>> trials;
    for (int i = 0; i < count; ++i) {
      const RankFault fault = Choose(first + i);
      Undisturbed(fault.strategy, fault.ranks);
      auto trial = std::make_unique<RankFaultTrial>(cluster_, fault, absl::StrCat("rank-", first + i));
      if (const absl::Status struck = trial->Strike(); !struck.ok()) {
        Fail(struck);
        continue;
      }
      trials.emplace_back(fault, std::move(trial));
    }
    for (auto& [fault, trial] : trials) {
      const absl::StatusOr<Outcome> outcome = trial->Finish();
      if (!outcome.ok()) {
        Fail(outcome.status());
        continue;
      }
      const std::string kind = fault.kind == FaultKind::kKill ? "rank killed" : "rank frozen";
      figures_.Add(kind, "1 found out", outcome->detection);
      figures_.Add(kind, "2 next ranks spawned", outcome->recovery);
      ++to_name_;
      const bool named = outcome->failed_rank == fault.victim;
      named_ += named ? 1 : 0;
      const bool same = Compare(outcome->weights, fault.strategy, fault.ranks);
      std::printf("%s: found out after %.2f s, next ranks after %.2f s, op \"%s\"%s%s\n", Describe(fault).c_str(),
                  absl::ToDoubleSeconds(outcome->detection), absl::ToDoubleSeconds(outcome->recovery),
                  outcome->failed_op.c_str(), named ? "" : ", ANOTHER RANK NAMED", same ? "" : ", OTHER WEIGHTS");
      if (!named) std::printf("  %s\n", outcome->text.c_str());
      std::fflush(stdout);
    }
  }

  void StrikeDaemon(DaemonFaultKind kind) {
    const std::string strategy = Pick(kStrategies), name = absl::StrCat("daemon-", daemons_++);
    Undisturbed(strategy, 2);
    const absl::StatusOr<DaemonOutcome> outcome = StrikeDaemonOf(cluster_, kind, strategy, 5 + random_() % 90, name);
    if (!outcome.ok()) return Fail(outcome.status());
    if (outcome->detection > absl::ZeroDuration()) figures_.Add(Name(kind), "1 found out", outcome->detection);
    if (outcome->recovery > absl::ZeroDuration()) figures_.Add(Name(kind), "2 next ranks spawned", outcome->recovery);
    if (outcome->back > absl::ZeroDuration()) figures_.Add(Name(kind), "3 in contact again", outcome->back);
    const bool same = Compare(outcome->weights, strategy, 2);
    std::printf("%s, %s: found out after %.2f s, next ranks after %.2f s, %llu generations%s\n", Name(kind),
                strategy.c_str(), absl::ToDoubleSeconds(outcome->detection), absl::ToDoubleSeconds(outcome->recovery),
                static_cast<unsigned long long>(outcome->generations), same ? "" : ", OTHER WEIGHTS");
    std::fflush(stdout);
  }

  bool Compare(const std::string& weights, const std::string& strategy, int ranks) {
    const bool same = weights == Undisturbed(strategy, ranks);
    ++compared_;
    equal_ += same ? 1 : 0;
    return same;
  }

  void Fail(const absl::Status& status) {
    ++failed_;
    std::printf("FAILED: %s\n", status.ToString().c_str());
    std::fflush(stdout);
  }

  const CampaignOptions options_;
  std::mt19937_64 random_;
  cluster::Cluster cluster_;
  Figures figures_;
  std::map<std::pair<std::string, int>, std::string> undisturbed_;
  int compared_ = 0, equal_ = 0, to_name_ = 0, named_ = 0, failed_ = 0, daemons_ = 0;
};

}  // namespace

bool RunCampaign(const CampaignOptions& options) { return Campaign(options).Run(); }

}  // namespace muster::faults
