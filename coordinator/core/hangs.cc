// Detects ranks that run but make no progress. Workers measure stalls by their own clocks, from each rank's progress
// page. The core sees all ranks and decides which one is at fault.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/core/state.h"

namespace muster::core {
namespace {

constexpr absl::Duration kTimeBreakdownInterval = absl::Minutes(1);
// How often workers report a stalled rank. The next report would come after the limit.
constexpr absl::Duration kBetweenReports = absl::Seconds(1);

}  // namespace

Timeouts TimeoutsOf(const Timeouts& service, const JobSpec& spec) {
  return Stretch(service, absl::Seconds(spec.detection_seconds()));
}

Timeouts Core::State::TimeoutsOf(const Job& job) const { return core::TimeoutsOf(options.timeouts, job.spec()); }

absl::Duration Core::State::StopDeadline(const Job& job, EndReason reason) const {
  const Timeouts timeouts = TimeoutsOf(job);
  return IsFault(reason) ? timeouts.kill : timeouts.stop;
}

void Core::State::NoteStep(JobEntry& job, uint64_t step, Transaction& transaction) {
  if (step <= job.highest_step) return;
  job.highest_step = step;
  if (job.newest()->state() != GENERATION_STATE_RUNNING) return;
  job.step_times.Saw(step, transaction.now.steady);
  job.time.Step(step, transaction.now.steady);
  // Otherwise a job that runs for a long time without writes would lose all of it when the coordinator crashes.
  if (transaction.now.steady - job.time_kept >= kTimeBreakdownInterval) transaction.Touch(JobId(job.record().id()));
}

void Core::State::NoteProgress(JobEntry& job, const NodeEntry& node, const ObservedRank& seen, SteadyTime now) {
  const auto [at, inserted] = job.progress.try_emplace(seen.key().rank());
  JobEntry::RankProgress& progress = at->second;
  // For a rank that was just connected it is unknown whether its process was frozen until now.
  if (inserted || !node.reported || (progress.frozen && !seen.frozen())) job.peers_unblocked_at = now;
  // A restarted daemon may not know yet which step its rank had reached.
  progress = {std::max(progress.step, seen.step()), seen.op_issued(), seen.op_completed(),
              absl::Seconds(std::max(0.0, seen.stalled_seconds())), seen.frozen()};
}

// How long the slowest rank may stall.
absl::Duration Core::State::HangLimitOf(const JobEntry& job, const JobEntry::RankProgress& slowest) const {
  const Timeouts timeouts = TimeoutsOf(job.record());
  const Train& train = job.record().spec().train();
  const uint64_t resumed = job.newest()->record().resumed_step();
  const Checkpoint& checkpoint = train.checkpoint();
  const bool writes = !checkpoint.path().empty() && checkpoint.has_async() && !checkpoint.async() &&
                      checkpoint.every_steps() > 0 && slowest.step % checkpoint.every_steps() == 0;
  // The first step of a process, and a checkpoint that a rank waits for, have no typical duration.
  if (slowest.step <= resumed || slowest.step >= train.steps() || writes) {
    return std::max(timeouts.start, timeouts.hang);
  }
  return HangLimit(timeouts, job.step_times.Slowest());
}

// A rank that hangs makes all others wait: they stall in their collectives, or idle between two steps. The slowest rank
// is at fault. The others may also have waited for a rank whose process was frozen; when it resumes, their stall time
// restarts. While a node is silent its ranks' progress is unknown, and the node's own time-out comes first.
void Core::State::CheckHang(JobEntry& job, uint32_t reporter, Transaction& transaction) {
  const GenerationMachine& generation = *job.newest();
  if (generation.state() != GENERATION_STATE_RUNNING ||
      job.progress.at(reporter).stalled <= options.timeouts.detection) {
    return;
  }
  const RankPlacement* culprit = nullptr;
  const auto place = [&](const RankPlacement& rank) {
    const JobEntry::RankProgress& p = job.progress.at(rank.rank());
    return std::tuple(!p.frozen, p.step, p.issued, p.completed, rank.rank());
  };
  for (const RankPlacement& rank : generation.record().ranks()) {
    if (rank.state() == RANK_STATE_EXITED) continue;
    const NodeEntry& node = nodes.at(NodeId(rank.node()));
    if (node.machine.state() != NODE_STATE_LIVE || !node.reported || !job.progress.contains(rank.rank())) return;
    if (culprit == nullptr || place(rank) < place(*culprit)) culprit = &rank;
  }
  if (culprit == nullptr) return;
  const JobEntry::RankProgress progress = job.progress.at(culprit->rank());
  const absl::Duration stalled = std::min(progress.stalled, transaction.now.steady - job.peers_unblocked_at);
  if (stalled > HangLimitOf(job, progress) - kBetweenReports) FailHung(job, *culprit, progress, transaction);
}

void Core::State::FailHung(JobEntry& job, const RankPlacement& culprit, const JobEntry::RankProgress& progress,
                           Transaction& transaction) {
  const Generation& generation = job.newest()->record();
  const std::string op = job.plan == nullptr ? "" : job.plan->op_names.NameOf(progress.op());
  Failure failure;
  failure.set_generation(generation.number());
  failure.set_rank(culprit.rank());
  failure.set_node(culprit.node());
  failure.set_step(progress.step + 1);
  failure.set_op(op);
  failure.set_detected_seconds(absl::ToDoubleSeconds(progress.stalled));
  RankExit& exit = *failure.mutable_exit();
  exit.set_cause(RankExit::HUNG);
  exit.set_message(absl::StrCat("rank ", culprit.rank(), " on ", culprit.node(), " hung in step ", failure.step(),
                                op.empty() ? "" : " at ", op, ": no progress for ",
                                absl::ToInt64Seconds(progress.stalled), " s"));
  failure.set_hint(
      absl::StrCat("a process that was stopped, a device or a network that is stuck: on the node dmesg and "
                   "nvidia-smi; its output: muster logs ",
                   job.record().id(), " --rank ", culprit.rank()));
  const std::string why = exit.message();
  transaction.AddEvent(&job, generation.number(), culprit.node(), "rank.hung", why);
  *job.machine.fields().mutable_failure() = std::move(failure);
  Stop(job, END_REASON_FAILED, STOP_INTENT_REQUEUE, why, transaction);
}

// Called when a rank ends after the first fault of its generation: either because of that fault, or as its culprit.
void Core::State::AddToFault(JobEntry& job, uint32_t rank, RankExit& exit, Transaction& transaction) {
  Failure& failure = *job.machine.fields().mutable_failure();
  if (exit.cause() == RankExit::COMPLETED) return;
  transaction.Touch(JobId(job.record().id()));
  if (rank != failure.rank()) {
    failure.add_collateral(rank);
    return;
  }
  RankExit& first = *failure.mutable_exit();
  if (first.cause() != RankExit::HUNG) return;
  exit.set_cause(RankExit::HUNG);
  exit.set_message(first.message());
  first = exit;  // keeps the last log lines
}

}  // namespace muster::core
