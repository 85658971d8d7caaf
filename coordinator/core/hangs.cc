// Ranks that live and make no progress. What stands still is told by the workers, from each rank's progress page and
// by their own clocks; who is to blame is decided here, where all ranks are seen.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/core/state.h"

namespace muster::core {
namespace {

constexpr absl::Duration kTimeBreakdownInterval = absl::Minutes(1);
// Workers tell of a rank that stands still so often: a report later it would be over the limit.
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
  // Else a job that runs for long and writes nothing would lose all of it with its coordinator.
  if (transaction.now.steady - job.time_kept >= kTimeBreakdownInterval) transaction.Touch(JobId(job.record().id()));
}

void Core::State::NoteProgress(JobEntry& job, const NodeEntry& node, const ObservedRank& seen, SteadyTime now) {
  const auto [at, inserted] = job.progress.try_emplace(seen.key().rank());
  JobEntry::RankProgress& progress = at->second;
  // Of a rank that comes into contact it is not known whether its process was stopped until just now.
  if (inserted || !node.reported || (progress.frozen && !seen.frozen())) job.went_on = now;
  // A restarted daemon may not know yet how far its rank had come.
  progress = {std::max(progress.step, seen.step()), seen.op_issued(), seen.op_completed(),
              absl::Seconds(std::max(0.0, seen.stalled_seconds())), seen.frozen()};
}

// How long the rank that is furthest behind may stand still.
absl::Duration Core::State::HangLimitOf(const JobEntry& job, const JobEntry::RankProgress& furthest) const {
  const Timeouts timeouts = TimeoutsOf(job.record());
  const Train& train = job.record().spec().train();
  const uint64_t resumed = job.newest()->record().resumed_step();
  const Checkpoint& checkpoint = train.checkpoint();
  const bool writes = !checkpoint.path().empty() && checkpoint.has_async() && !checkpoint.async() &&
                      checkpoint.every_steps() > 0 && furthest.step % checkpoint.every_steps() == 0;
  // The first step of a process, and what is written while a rank waits, take as long as they take.
  if (furthest.step <= resumed || furthest.step >= train.steps() || writes) {
    return std::max(timeouts.start, timeouts.hang);
  }
  return HangLimit(timeouts, job.step_times.Slowest());
}

// A rank that hangs keeps all others waiting: they stand still in their collectives, or stay alive at a stage between
// two steps. The one furthest behind is to blame. They may have waited for one whose process was stopped: since it
// goes on their time counts anew. While a node is silent nothing is known of its ranks, and its own time-out is first.
void Core::State::CheckHang(JobEntry& job, uint32_t reporter, Transaction& transaction) {
  const GenerationMachine& generation = *job.newest();
  if (generation.state() != GENERATION_STATE_RUNNING || job.progress.at(reporter).still <= options.timeouts.detection) {
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
  const absl::Duration still = std::min(progress.still, transaction.now.steady - job.went_on);
  if (still > HangLimitOf(job, progress) - kBetweenReports) FailHung(job, *culprit, progress, transaction);
}

void Core::State::FailHung(JobEntry& job, const RankPlacement& culprit, const JobEntry::RankProgress& progress,
                           Transaction& transaction) {
  const Generation& generation = job.newest()->record();
  const std::string op = options.op_namer == nullptr ? ""
                                                     : options.op_namer(SpecOf(job.record(), generation),
                                                                        PlacedSlots(generation), progress.op());
  Failure failure;
  failure.set_generation(generation.number());
  failure.set_rank(culprit.rank());
  failure.set_node(culprit.node());
  failure.set_step(progress.step + 1);
  failure.set_op(op);
  failure.set_detected_seconds(absl::ToDoubleSeconds(progress.still));
  RankExit& exit = *failure.mutable_exit();
  exit.set_cause(RankExit::HUNG);
  exit.set_message(absl::StrCat("rank ", culprit.rank(), " on ", culprit.node(), " hung in step ", failure.step(),
                                op.empty() ? "" : " at ", op, ": no progress for ",
                                absl::ToInt64Seconds(progress.still), " s"));
  failure.set_hint(
      absl::StrCat("a process that was stopped, a device or a network that is stuck: on the node dmesg and "
                   "nvidia-smi; its output: muster logs ",
                   job.record().id(), " --rank ", culprit.rank()));
  const std::string why = exit.message();
  transaction.Tell(&job, generation.number(), culprit.node(), "rank.hung", why);
  *job.machine.fields().mutable_failure() = std::move(failure);
  Stop(job, END_REASON_FAILED, STOP_INTENT_REQUEUE, why, transaction);
}

// A rank has ended behind the first fault of its generation: by it, or it is the one that is to blame.
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
  first = exit;  // with its last lines
}

}  // namespace muster::core
