#include "worker/agent/reconcile.h"

#include <algorithm>
#include <map>

namespace muster::agent {
namespace {

enum class Goal { kRun, kStop, kNone };

std::map<RankId, Goal> Goals(const Desired& desired) {
  std::map<RankId, Goal> goals;
  for (const DesiredRank& rank : desired.ranks()) goals[RankOf(rank.key())] = rank.has_run() ? Goal::kRun : Goal::kStop;
  return goals;
}

// Whether another rank runs, or may run, on one of the slots.
bool SlotsBusy(const Assignment& assignment, const std::vector<LocalRank>& local) {
  return std::any_of(local.begin(), local.end(), [&](const LocalRank& here) {
    if (here.ended && !here.stuck) return false;
    if (!here.slots.has_value()) return true;
    return std::any_of(here.slots->begin(), here.slots->end(), [&](uint32_t slot) {
      return std::find(assignment.slots().begin(), assignment.slots().end(), slot) != assignment.slots().end();
    });
  });
}

}  // namespace

RankId RankOf(const RankKey& key) { return {JobId(key.job()), key.generation(), key.rank()}; }

RankKey KeyOf(const RankId& rank) {
  RankKey key;
  key.set_job(rank.job.value());
  key.set_generation(rank.generation);
  key.set_rank(rank.rank);
  return key;
}

std::ostream& operator<<(std::ostream& out, const Operation& operation) {
  constexpr const char* kNames[] = {"start", "stop", "kill", "finish"};
  return out << kNames[operation.kind] << ' ' << operation.rank.ToString();
}

std::vector<Operation> Reconcile(const Desired& desired, const std::vector<LocalRank>& local,
                                 const Circumstances& circumstances) {
  std::map<RankId, Goal> goals = Goals(desired);
  std::vector<Operation> operations;
  for (const LocalRank& here : local) {
    const auto found = goals.find(here.rank);
    const Goal goal = found == goals.end() ? Goal::kNone : found->second;
    if (found != goals.end()) goals.erase(found);
    if (goal == Goal::kNone && circumstances.fresh) {
      if (here.ended) {
        if (!here.stuck) operations.push_back({Operation::kFinish, here.rank});
      } else if (here.termination != Termination::kKill) {
        operations.push_back({Operation::kKill, here.rank});
      }
    } else if (!here.ended && here.termination == Termination::kNone &&
               (goal == Goal::kStop || circumstances.draining)) {
      operations.push_back({Operation::kStop, here.rank});
    }
  }
  if (circumstances.fresh && !circumstances.draining) {
    for (const DesiredRank& desired_rank : desired.ranks()) {
      const RankId rank = RankOf(desired_rank.key());
      if (!desired_rank.has_run() || !goals.contains(rank) || SlotsBusy(desired_rank.run(), local)) continue;
      operations.push_back({Operation::kStart, rank});
    }
  }
  std::sort(operations.begin(), operations.end(), [](const Operation& a, const Operation& b) {
    const bool a_starts = a.kind == Operation::kStart;
    const bool b_starts = b.kind == Operation::kStart;
    return a_starts != b_starts ? b_starts : a.rank < b.rank;
  });
  return operations;
}

}  // namespace muster::agent
