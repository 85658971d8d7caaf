#include "tests/faults/rank_fault.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "strategies/schedule/schedule.h"
#include "testing/wait.h"
#include "worker/rundir/process_table.h"
#include "worker/rundir/progress.h"

namespace muster::faults {
namespace {

using cluster::Cluster;
using cluster::Number;
using nlohmann::json;

constexpr int kSteps = 300;
constexpr int kJobs = 3;                              // so that one of them shows the phase
constexpr auto kPatience = std::chrono::seconds(60);  // for the phase, on a busy machine
constexpr absl::Duration kEnd = absl::Minutes(10);

uint64_t At(OpKind kind) { return rundir::kOps + static_cast<uint64_t>(kind); }

std::set<uint64_t> StagesOf(const std::string& phase) {
  if (phase == "data") return {rundir::kReporting, rundir::kReading};  // in a small job each takes microseconds
  if (phase == "forward") return {At(OpKind::kForward)};
  if (phase == "gather") return {At(OpKind::kGather), At(OpKind::kGatherBetween)};
  if (phase == "backward") return {At(OpKind::kBackward)};
  if (phase == "reduce")
    return {At(OpKind::kReduce), At(OpKind::kAllReduce), At(OpKind::kReduceInside), At(OpKind::kFinishSum)};
  if (phase == "optimizer") return {At(OpKind::kGradientNorm), At(OpKind::kOptimizerStep)};
  if (phase == "checkpoint") return {rundir::kCheckpointing};
  return {};
}

std::string ParallelText(const std::string& strategy) {
  if (strategy == "pipeline") return "parallel: {pipeline: 2}\n";
  if (strategy == "levels") return "communication: {hierarchy: always}\n";
  if (strategy == "sparse") return "communication: {hierarchy: always, compression: {kind: top_k, ratio: 0.05}}\n";
  if (strategy == "thin") return "communication: {compression: {kind: power_sgd}}\n";
  return strategy == "tensor" ? "parallel: {tensor: 2, sequence_parallel: true}\n" : "";
}

std::string StrategyText(const std::string& strategy) {
  if (strategy == "zero1") return "kind: zero, stage: 1";
  if (strategy == "zero3") return "kind: zero, stage: 3";
  if (strategy == "sparse" || strategy == "thin") return "kind: ddp";
  if (!ParallelText(strategy).empty()) return "kind: fsdp";  // of the ranks inside
  return "kind: " + strategy;
}

template <typename Condition>
bool SpinUntil(Condition condition, std::chrono::steady_clock::duration patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
  }
  return true;
}

bool Stopped(pid_t pid) {
  const absl::StatusOr<rundir::ProcessRow> row = rundir::ReadProcess(pid);
  return !row.ok() || row->state == 'T' || row->state == 'Z';
}

}  // namespace

std::string Describe(const RankFault& fault) {
  return absl::StrCat(fault.kind == FaultKind::kKill ? "kill" : "freeze", " rank ", fault.victim, " of ", fault.ranks,
                      " in ", fault.phase, ", ", fault.strategy);
}

bool HasPhase(const std::string& strategy, const std::string& phase) { return strategy != "ddp" || phase != "gather"; }

cluster::JobOptions JobOf(const std::string& strategy, int ranks, const std::string& name) {
  return {.name = name,
          .steps = kSteps,
          .checkpoint_every = 50,
          .sequences = 2 * ranks,
          .extra = absl::StrCat("resources: {ranks: ", ranks, "}\nstrategy: {", StrategyText(strategy), "}\n",
                                ParallelText(strategy))};
}

absl::StatusOr<rundir::RankDir> FindRank(const Cluster& cluster, const std::string& job, uint64_t generation,
                                         uint32_t rank) {
  for (const std::string& run : cluster.RunDirs()) {
    rundir::RankDir dir(run, {JobId(job), generation, rank});
    if (dir.ReadProcesses().ok()) return dir;
  }
  return absl::NotFoundError(absl::StrCat("no rank ", rank, " of generation ", generation, " of ", job));
}

absl::StatusOr<absl::Time> SpawnedAt(const rundir::RankDir& dir) {
  struct stat info {};
  if (stat((dir.path() + "/processes.json").c_str(), &info) != 0) return absl::ErrnoToStatus(errno, dir.path());
  return absl::TimeFromTimespec(info.st_mtim);
}

std::optional<absl::Time> EventTime(Cluster& cluster, const std::string& job, const std::vector<std::string>& kinds,
                                    absl::Time after) {
  for (const json& event : cluster.Events(job)) {
    if (std::find(kinds.begin(), kinds.end(), event.value("kind", "")) == kinds.end()) continue;
    absl::Time time;
    std::string error;
    if (absl::ParseTime(absl::RFC3339_full, event.value("time", ""), &time, &error) && time >= after) return time;
  }
  return std::nullopt;
}

RankFaultTrial::RankFaultTrial(Cluster& cluster, RankFault fault, const std::string& name)
    : cluster_(cluster), fault_(std::move(fault)) {
  Submit(name);
}

void RankFaultTrial::Submit(const std::string& name) {
  name_ = name;
  cluster::JobOptions options = JobOf(fault_.strategy, fault_.ranks, name_);
  if (fault_.phase == "checkpoint") options.checkpoint_every = 10;  // it is short: many chances to see it
  job_ = cluster_.Submit(options);
}

// Stops the rank, reads its state, and continues it if it is in another phase: so the phase is certain.
absl::Status RankFaultTrial::Freeze(const rundir::RankDir& dir, pid_t pid) {
  const absl::StatusOr<std::unique_ptr<rundir::ProgressPage>> opened = rundir::ProgressPage::Open(dir.path());
  if (!opened.ok()) return opened.status();
  const rundir::Progress& page = *std::as_const(**opened).operator->();
  const std::set<uint64_t> stages = StagesOf(fault_.phase);
  // Not after the last step: the time for the last checkpoint is the same as for the start, and that is minutes.
  const auto there = [&] { return page.step >= fault_.step && page.step < kSteps && stages.contains(page.stage); };
  // To catch a short phase this process must run when the rank does. Without the right to raise its priority it tries
  // longer.
  setpriority(PRIO_PROCESS, 0, -10);
  const auto usual = absl::MakeCleanup([] { setpriority(PRIO_PROCESS, 0, 0); });
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    if (!SpinUntil([&] { return there() || kill(pid, 0) != 0; }, kPatience)) break;
    if (kill(pid, SIGSTOP) != 0) break;
    struck_ = absl::Now();
    SpinUntil([&] { return Stopped(pid); }, std::chrono::seconds(10));
    if (there()) {
      step_ = page.step + 1;
      return absl::OkStatus();
    }
    kill(pid, SIGCONT);
  }
  return absl::DeadlineExceededError(
      absl::StrCat(Describe(fault_), ": the rank was never seen in this phase; step ", page.step.load()));
}

absl::Status RankFaultTrial::Strike() {
  const std::string name = name_;
  absl::Status status = StrikeThisJob();
  for (int again = 2; absl::IsDeadlineExceeded(status) && again <= kJobs; ++again) {
    cluster_.Muster({"cancel", "-y", job_});  // it may have ended
    Submit(absl::StrCat(name, "-again-", again));
    status = StrikeThisJob();
  }
  return status;
}

absl::Status RankFaultTrial::StrikeThisJob() {
  absl::StatusOr<rundir::RankDir> dir = absl::NotFoundError("not begun");
  const bool runs = Eventually(
      [&] {
        dir = FindRank(cluster_, job_, 1, fault_.victim);
        return dir.ok() && rundir::ProgressPage::Open(dir->path()).ok();
      },
      absl::Seconds(60));
  if (!runs) return absl::UnavailableError(absl::StrCat(Describe(fault_), ": its rank did not start"));
  const pid_t pid = dir->ReadProcesses()->trainer.pid;
  if (absl::Status status = Freeze(*dir, pid); !status.ok()) return status;
  if (fault_.kind == FaultKind::kKill) {
    struck_ = absl::Now();
    kill(pid, SIGKILL);
  }
  return absl::OkStatus();
}

absl::StatusOr<Outcome> RankFaultTrial::Finish() {
  std::string state;
  Eventually(
      [&] {
        state = cluster_.State(job_);
        return state == "completed" || state == "failed" || state == "cancelled";
      },
      kEnd, absl::Milliseconds(300));
  if (state != "completed") {
    return absl::DeadlineExceededError(
        absl::StrCat(Describe(fault_), ": the job is ", state, "\n", cluster_.Muster({"events", job_}).out));
  }
  const json job = cluster_.Job(job_);
  Outcome outcome;
  outcome.generations = cluster_.Generation(job_);
  outcome.other_faults = cluster_.LostOrHung(job_, struck_);
  if (fault_.kind == FaultKind::kFreeze) {
    const std::vector<json> events = cluster_.Events(job_);
    const bool hung = std::any_of(events.begin(), events.end(), [](const json& event) {
      return event.value("kind", "") == "rank.hung" && Number(event.value("generation", json(0))) == 1;
    });
    outcome.other_faults -= hung ? 1 : 0;
  }
  outcome.step = step_;
  outcome.weights = cluster_.FinalWeights(name_).second;
  const auto detected = EventTime(cluster_, job_, {"rank.exited", "rank.hung"}, struck_);
  if (detected.has_value()) outcome.detection = *detected - struck_;
  for (uint32_t rank = 0; rank < static_cast<uint32_t>(fault_.ranks); ++rank) {
    const absl::StatusOr<rundir::RankDir> dir = FindRank(cluster_, job_, 2, rank);
    const absl::StatusOr<absl::Time> spawned = dir.ok() ? SpawnedAt(*dir) : dir.status();
    if (!spawned.ok() && outcome.generations > 2) continue;  // lost before all of it was spawned
    if (!spawned.ok()) return spawned.status();
    outcome.recovery = std::max(outcome.recovery, *spawned - struck_);
  }
  const json failure = job.value("failure", json::object());
  outcome.text = failure.dump();
  outcome.cause = failure.value("exit", json::object()).value("cause", "");
  outcome.failed_rank = static_cast<int64_t>(Number(failure.value("rank", json(0))));
  outcome.failed_step = Number(failure.value("step", json(0)));
  outcome.failed_op = failure.value("op", "");
  return outcome;
}

}  // namespace muster::faults
