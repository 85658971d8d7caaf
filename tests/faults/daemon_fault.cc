#include "tests/faults/daemon_fault.h"

#include <signal.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "testing/wait.h"
#include "tests/faults/rank_fault.h"
#include "worker/rundir/progress.h"
#include "worker/rundir/rundir.h"

namespace muster::faults {
namespace {

using cluster::Cluster;

constexpr uint32_t kRanks = 2;
constexpr int kSlots = 6;
constexpr absl::Duration kLong = absl::Minutes(10);

class Trial {
 public:
  Trial(Cluster& cluster, const std::string& strategy, const std::string& name)
      : cluster_(cluster), name_(name), job_(cluster.Submit(JobOf(strategy, kRanks, name))) {}

  absl::Status WaitForStep(uint64_t step) {
    const bool there = Eventually(
        [&] {
          const absl::StatusOr<rundir::RankDir> dir = FindRank(cluster_, job_, 1, 0);
          if (!dir.ok()) return false;
          const auto page = rundir::ProgressPage::Open(dir->path());
          return page.ok() && (*std::as_const(**page).operator->()).step >= step;
        },
        kLong);
    if (!there) return absl::DeadlineExceededError("the job did not reach its step");
    const absl::StatusOr<rundir::RankDir> dir = FindRank(cluster_, job_, 1, 0);
    if (!dir.ok()) return dir.status();
    worker_ = dir->run() == cluster_.RunDir(0) ? 0 : 1;
    return absl::OkStatus();
  }

  absl::StatusOr<DaemonOutcome> Strike(DaemonFaultKind kind) {
    struck_ = absl::Now();
    absl::Status done;
    switch (kind) {
      case DaemonFaultKind::kKillWorker:
        done = KillWorker();
        break;
      case DaemonFaultKind::kFreezeWorker:
        done = FreezeWorker();
        break;
      case DaemonFaultKind::kLoseHost:
        done = LoseHost();
        break;
      case DaemonFaultKind::kKillCoordinator:
        cluster_.KillCoordinator();
        cluster_.StartCoordinator();
        outcome_.back = absl::Now() - struck_;
        break;
    }
    if (!done.ok()) return done;
    return Finish(kind == DaemonFaultKind::kFreezeWorker || kind == DaemonFaultKind::kLoseHost ? 2 : 1);
  }

 private:
  absl::Status KillWorker() {
    const std::vector<rundir::ProcessId> before = Trainers(1);
    cluster_.KillWorker(worker_);
    cluster_.StartWorker(worker_, kSlots);
    const bool back = Eventually(
        [&] {
          const auto joined = EventTime(cluster_, "", {"node.returned", "job.completed"}, struck_);
          if (joined.has_value()) outcome_.back = *joined - struck_;
          return joined.has_value();
        },
        kLong);
    if (!back) return absl::DeadlineExceededError("the new daemon did not connect");
    return Trainers(1) == before ? absl::OkStatus() : absl::InternalError("a rank was not adopted");
  }

  absl::Status FreezeWorker() {
    const pid_t pid = cluster_.WorkerPid(worker_);
    kill(pid, SIGSTOP);
    const absl::Status elsewhere = WaitForNextGeneration();
    kill(pid, SIGCONT);
    if (!elsewhere.ok()) return elsewhere;
    const absl::Time woken = absl::Now();
    const std::vector<rundir::ProcessId> stale = Trainers(1);
    const bool ended =
        Eventually([&] { return std::none_of(stale.begin(), stale.end(), rundir::IsAlive); }, absl::Seconds(30));
    if (!ended) return absl::InternalError("ranks that count as lost still run although their daemon is in contact");
    outcome_.back = absl::Now() - woken;
    return absl::OkStatus();
  }

  absl::Status LoseHost() {
    cluster_.KillWorker(worker_);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const absl::StatusOr<rundir::RankDir> dir = FindRank(cluster_, job_, 1, rank);
      if (!dir.ok()) return dir.status();
      kill(dir->ReadProcesses()->shim.pid, SIGKILL);  // its trainer dies with it
    }
    const absl::Status elsewhere = WaitForNextGeneration();
    cluster_.StartWorker(worker_, kSlots);
    return elsewhere;
  }

  absl::Status WaitForNextGeneration() {
    std::vector<absl::Time> spawned;
    const bool runs = Eventually([&] { return SpawnTimes(2, spawned); }, kLong);
    const auto away = EventTime(cluster_, "", {"node.away"}, struck_);
    if (away.has_value()) outcome_.detection = *away - struck_;
    if (!runs) return absl::DeadlineExceededError("no next generation started on the other worker");
    outcome_.recovery = *std::max_element(spawned.begin(), spawned.end()) - struck_;
    return away.has_value() ? absl::OkStatus() : absl::InternalError("the silent node was not reported");
  }

  bool SpawnTimes(uint64_t generation, std::vector<absl::Time>& times) {
    times.clear();
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const absl::StatusOr<rundir::RankDir> dir = FindRank(cluster_, job_, generation, rank);
      const absl::StatusOr<absl::Time> time = dir.ok() ? SpawnedAt(*dir) : dir.status();
      if (!time.ok()) return false;
      times.push_back(*time);
    }
    return true;
  }

  std::vector<rundir::ProcessId> Trainers(uint64_t generation) {
    std::vector<rundir::ProcessId> trainers;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const absl::StatusOr<rundir::RankDir> dir = FindRank(cluster_, job_, generation, rank);
      if (dir.ok()) trainers.push_back(dir->ReadProcesses()->trainer);
    }
    return trainers;
  }

  // `generations`: 1 or 2. After 2 more may follow on a busy machine, where another daemon or rank pauses for too long.
  absl::StatusOr<DaemonOutcome> Finish(uint64_t generations) {
    if (!cluster_.WaitForState(job_, "completed", kLong)) return absl::DeadlineExceededError("the job did not end");
    const bool both = Eventually([&] { return cluster_.MusterJson({"nodes"}).size() == 2; }, kLong);
    if (!both) return absl::DeadlineExceededError("the workers did not come back");
    outcome_.weights = cluster_.FinalWeights(name_).second;
    outcome_.generations = cluster_.Generation(job_);
    const uint64_t most = generations == 1 ? 1 : 1 + cluster_.LostOrHung(job_, struck_);
    if (outcome_.generations >= generations && outcome_.generations <= most) return outcome_;
    return absl::InternalError(absl::StrCat(outcome_.generations, " generations, not ", generations, "\n",
                                            cluster_.Muster({"events", job_}).out));
  }

  Cluster& cluster_;
  const std::string name_;
  const std::string job_;
  int worker_ = 0;
  absl::Time struck_;
  DaemonOutcome outcome_;
};

}  // namespace

const char* Name(DaemonFaultKind kind) {
  switch (kind) {
    case DaemonFaultKind::kKillWorker:
      return "worker killed";
    case DaemonFaultKind::kFreezeWorker:
      return "worker frozen";
    case DaemonFaultKind::kLoseHost:
      return "host lost";
    default:
      return "coordinator killed";
  }
}

absl::StatusOr<DaemonOutcome> StrikeDaemonOf(Cluster& cluster, DaemonFaultKind kind, const std::string& strategy,
                                             uint64_t step, const std::string& name) {
  Trial trial(cluster, strategy, name);
  const absl::Status runs = trial.WaitForStep(step);
  const absl::StatusOr<DaemonOutcome> outcome = runs.ok() ? trial.Strike(kind) : runs;
  if (outcome.ok()) return outcome;
  return absl::Status(outcome.status().code(), absl::StrCat(Name(kind), ": ", outcome.status().message()));
}

}  // namespace muster::faults
