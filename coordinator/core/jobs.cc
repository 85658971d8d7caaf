#include "coordinator/core/jobs.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/counted.h"
#include "common/node/node_selector.h"
#include "common/rank_exit.h"
#include "coordinator/core/exits.h"
#include "coordinator/core/node_health.h"
#include "coordinator/core/records.h"
#include "coordinator/core/reservations.h"
#include "coordinator/core/wanted_plans.h"

namespace muster::core {
namespace {

// Whether one of its ranks ended because the loss or the gradient was not finite.
bool WasNonFinite(const Generation& generation) {
  return std::any_of(generation.ranks().begin(), generation.ranks().end(), [](const RankPlacement& rank) {
    return rank.exit().cause() == RankExit::FAILED && rank.exit().exit_code() == kNonFiniteExitCode;
  });
}

// Whether the newest two generations diverged and the second came no further. Training is deterministic, so a third
// one would end at the same step.
bool Diverged(const JobEntry& job) {
  if (job.record().spec().has_exec()) return false;  // a script's exit codes are its own
  if (job.record().restarts_without_progress() == 0 || !WasNonFinite(job.newest()->record())) return false;
  const auto before = job.generations.find(job.newest()->record().number() - 1);
  return before != job.generations.end() && WasNonFinite(before->second.record());
}

constexpr int64_t kStoredSeldom = 60;
constexpr int64_t kStoreTimesParts = 60;

// Rounded up, so that one tick stores the times of many jobs. nullopt: never.
std::optional<SteadyTime> AfterWhole(SteadyTime now, absl::Duration passed) {
  if (passed == absl::InfiniteDuration()) return std::nullopt;
  const absl::Duration since_zero = absl::Nanoseconds(now.nanoseconds()) + passed;
  return SteadyTime::FromNanoseconds(absl::ToInt64Nanoseconds(absl::Ceil(since_zero, absl::Seconds(1))));
}

// The step that a restart resumes from; for a job without checkpoints, the highest step that it reached.
uint64_t ProgressOf(const JobEntry& job, const RunningGeneration& ended) {
  const Job& record = job.record();
  if (record.spec().train().checkpoint().path().empty()) return ended.highest_step;
  return record.checkpoints().empty() ? 0 : record.checkpoints().rbegin()->step();
}

// The highest step that the record shows as done.
uint64_t DoneStep(const Job& job) {
  const uint64_t published = job.checkpoints().empty() ? 0 : job.checkpoints().rbegin()->step();
  return std::max(published, job.progress_step());
}

// The phase in which the previous coordinator ended.
TimeTracker::Phase PhaseOf(const JobEntry& job) {
  using Phase = TimeTracker::Phase;
  const GenerationMachine* newest = job.newest();
  // Whether that generation ended by a pause, which is not a fault.
  const auto paused = [&](uint64_t number) {
    const auto found = job.generations.find(number);
    if (found == job.generations.end()) return true;
    const EndReason reason = found->second.record().reason();
    return reason == END_REASON_PAUSED || reason == END_REASON_PREEMPTED;  // PREEMPTED: by a build before PAUSED
  };
  switch (job.machine.state()) {
    case JOB_STATE_QUEUED:
      return newest == nullptr || paused(job.record().generation()) ? Phase::kQueued : Phase::kRecovering;
    case JOB_STATE_STARTING:
      return paused(job.record().generation() - 1) ? Phase::kStarting : Phase::kRecovering;
    case JOB_STATE_STOPPING:
      return job.record().stop_intent() == STOP_INTENT_REQUEUE ? Phase::kRecovering : Phase::kRunning;
    case JOB_STATE_RUNNING:
      return Phase::kRunning;
    case JOB_STATE_PAUSED:
      return Phase::kPaused;
    default:
      return Phase::kOver;
  }
}

// Whether a later generation than this one has published a checkpoint, or reported that of its script.
bool PublishedAfter(const Job& job, uint64_t generation) {
  const auto is_later = [&](const PublishedCheckpoint& checkpoint) { return checkpoint.generation() > generation; };
  return std::any_of(job.checkpoints().begin(), job.checkpoints().end(), is_later) || is_later(job.script_checkpoint());
}

}  // namespace

bool AdvanceProgress(Job& job, uint64_t step) {
  if (step <= job.progress_step()) return false;
  job.set_progress_step(step);
  job.set_restarts_without_progress(0);
  return true;
}

void Jobs::ChangeIntent(JobEntry& job, StopIntent intent, const std::string& why, Transaction& transaction) {
  job.machine.Stop(intent);
  job.machine.fields().set_reason(why);
  transaction.Touch(job.id());
  transaction.AddEvent(&job, job.record().generation(), "", "job.stopping",
                       absl::StrCat(job.record().id(), " is stopping: ", why));
}

void Jobs::CountHeld(JobEntry& job, Transaction& transaction) {
  if (!job.running.has_value()) return;
  Job& record = job.machine.fields();
  const double seconds = absl::ToDoubleSeconds(transaction.now.steady - job.running->held_since);
  const double slot_seconds = seconds * static_cast<double>(Records::SlotsHeldBy(job));
  record.set_held_seconds(record.held_seconds() + seconds);
  record.set_slot_seconds(record.slot_seconds() + slot_seconds);
  job.running->held_since = transaction.now.steady;
  projects_->Use(job, slot_seconds, transaction);
}

void Jobs::AfterGeneration(JobEntry& job, Transaction& transaction) {
  const RunningGeneration ended = *std::move(job.running);
  job.running.reset();
  const EndReason reason = job.newest()->record().reason();
  plans_->DropAll(job.id());
  if (IsFault(reason)) job.time.Fault(transaction.now.steady);
  transaction.Touch(job.id());
  if (reason == END_REASON_COMPLETED) return Complete(job, transaction);
  const StopIntent intent = job.record().stop_intent();
  if (intent == STOP_INTENT_CANCEL) return Cancel(job, "", transaction);
  if (intent == STOP_INTENT_PAUSE) {
    const std::string lost = LeaveLostReservation(job, *records_);
    return Pause(job, lost.empty() ? "paused by its user" : lost, transaction);
  }
  if (intent == STOP_INTENT_TIMEOUT) return FailByTimeLimit(job, transaction);
  if (IsFault(reason)) return SpendRestart(job, ProgressOf(job, ended), transaction);
  Requeue(job, absl::StrCat("requeued: its last generation was ", Name(reason)), absl::ZeroDuration(), transaction);
}

void Jobs::Pause(JobEntry& job, const std::string& why, Transaction& transaction) {
  plans_->DropAll(job.id());
  job.machine.Pause();
  job.time.Enter(TimeTracker::Phase::kPaused, transaction.now.steady);
  LeaveLostReservation(job, *records_);
  job.machine.fields().set_reason(absl::StrCat(why, "; to continue: muster resume ", job.record().id()));
  job.not_before.reset();
  transaction.Touch(job.id());
  transaction.AddEvent(&job, 0, "", "job.paused", absl::StrCat(job.record().id(), " was paused"));
}

// Only faults count against the restarts, and only while nothing is gained between them.
void Jobs::SpendRestart(JobEntry& job, uint64_t reached_step, Transaction& transaction) {
  Job& record = job.machine.fields();
  AdvanceProgress(record, reached_step);
  const uint32_t allowed = record.spec().max_restarts();
  const std::string& cause = record.failure().exit().message();
  if (record.failure().exit().cause() == RankExit::REFUSED && record.failure().generation() == record.generation()) {
    return RetryElsewhere(job, transaction);
  }
  if (Diverged(job)) {
    return Fail(job,
                absl::StrCat(cause, "; not restarted again: a restart from step ",
                             job.newest()->record().resumed_step(), " diverged in the same way"),
                transaction);
  }
  if (record.restarts_without_progress() >= allowed) {
    return Fail(job,
                absl::StrCat(cause, allowed == 0 ? ""
                                                 : absl::StrCat(" (after ", Counted(allowed, "restart", "restarts"),
                                                                " without progress)")),
                transaction);
  }
  record.set_restarts_without_progress(record.restarts_without_progress() + 1);
  record.set_restarts(record.restarts() + 1);
  Requeue(job, absl::StrCat("restart ", record.restarts_without_progress(), " of ", allowed, " after: ", cause),
          Backoff(record), transaction);
}

// What a node lacks is no fault of the job, so that does not count as a restart: it is tried once more, without that
// node. What two nodes lack, or the only one that could hold it, the job should not have asked for, unless it has
// published a checkpoint since the first of them: then it can run, and two nodes are bad.
void Jobs::RetryElsewhere(JobEntry& job, Transaction& transaction) {
  const Job& record = job.record();
  const Failure& failure = record.failure();
  if (!failure.exit().of_node()) return Fail(job, failure.exit().message(), transaction);
  const std::string cause = absl::StrCat(failure.exit().message(), " (on ", failure.node(), ")");
  for (const NodeRefusal& other : record.refused_by()) {
    if (other.node() == failure.node() || PublishedAfter(record, other.generation())) continue;
    ForgiveNodes(job, transaction);
    job.machine.fields().mutable_failure()->set_hint(HintForRefusedJob(job.id().value(), failure.rank()));
    return Fail(job, absl::StrCat(cause, "; ", other.node(), " also rejected it: ", other.message()), transaction);
  }
  if (!OthersCouldHold(job)) {
    job.machine.fields().mutable_failure()->set_hint(HintForRefusedJob(job.id().value(), failure.rank()));
    return Fail(job, absl::StrCat(cause, "; no other node can run it"), transaction);
  }
  Requeue(job, absl::StrCat("retrying without ", failure.node(), ", which rejected it: ", failure.exit().message()),
          absl::ZeroDuration(), transaction);
}

void Jobs::ForgiveNodes(const JobEntry& job, Transaction& transaction) {
  std::erase_if(transaction.faults, [&](const Transaction::Fault& fault) { return fault.job == job.id(); });
  const auto is_own = [&](const NodeFault& fault, SteadyTime) { return fault.job() == job.id().value(); };
  for (const NodeRefusal& refusal : job.record().refused_by()) {
    NodeEntry* node = records_->FindNode(NodeId(refusal.node()));
    if (node != nullptr && DropFaults(*node, is_own)) transaction.Touch(NodeId(refusal.node()));
  }
}

bool Jobs::OthersCouldHold(const JobEntry& job) const {
  const uint32_t together = TensorRanksOf(job.record().spec());
  const Device device = job.newest()->record().device();
  const Resources& resources = job.record().spec().resources();
  const Reservation* const reservation = ReservationOf(job.record(), *records_);
  std::map<std::string, uint64_t> slots;  // by topology domain
  for (const auto& [id, node] : records_->nodes) {
    if (node.machine.state() == NODE_STATE_LOST || job.Avoids(id)) continue;
    if (reservation != nullptr && !HasNode(*reservation, id.value())) continue;
    if (!Selects(resources.node_selector(), node.record())) continue;
    const std::string& key = resources.topology().required();
    const std::optional<std::string> domain = key.empty() ? "" : NodeLabel(node.record(), key);
    if (!domain.has_value()) continue;
    const auto suits = [&](const Slot& slot) {
      return slot.device() == device && (slot.memory_bytes() == 0 || slot.memory_bytes() >= job.slot_bytes);
    };
    const auto here =
        static_cast<uint64_t>(std::count_if(node.record().slots().begin(), node.record().slots().end(), suits));
    slots[*domain] += here - here % together;
  }
  return std::any_of(slots.begin(), slots.end(),
                     [&](const auto& of_domain) { return of_domain.second >= job.least_ranks(); });
}

absl::Duration Jobs::Backoff(const Job& job) const {
  const uint32_t n = job.restarts_without_progress();
  if (n == 0) return absl::ZeroDuration();
  return std::min(options_->backoff_base * (int64_t{1} << std::min(n - 1, 20u)), options_->backoff_max);
}

void Jobs::Requeue(JobEntry& job, const std::string& why, absl::Duration delay, Transaction& transaction) {
  job.machine.Queue();
  const bool preempted = job.newest() != nullptr && job.newest()->record().reason() == END_REASON_PREEMPTED;
  const bool rested = preempted || job.time.phase() == TimeTracker::Phase::kPaused;
  job.time.Enter(rested ? TimeTracker::Phase::kQueued : TimeTracker::Phase::kRecovering, transaction.now.steady);
  job.machine.fields().set_reason(why);
  job.not_before.reset();
  if (delay > absl::ZeroDuration()) job.not_before = transaction.now.steady + delay;
  transaction.Touch(job.id());
  transaction.AddEvent(&job, 0, "", "job.queued", absl::StrCat(job.record().id(), ": ", why));
}

void Jobs::Complete(JobEntry& job, Transaction& transaction) {
  job.machine.Complete(transaction.now);
  Finish(job, "job.completed", "completed", "", transaction);
}

void Jobs::Fail(JobEntry& job, const std::string& reason, Transaction& transaction) {
  job.machine.Fail(transaction.now);
  Finish(job, "job.failed", absl::StrCat("failed: ", reason), reason, transaction);
}

void Jobs::FailByTimeLimit(JobEntry& job, Transaction& transaction) {
  job.machine.fields().clear_failure();  // an earlier one, which it survived
  const Job& record = job.record();
  std::string reason = absl::StrCat("its time_limit of ", record.spec().time_limit(), " is reached");
  if (record.checkpoints().empty()) {
    absl::StrAppend(&reason, "; it has no checkpoint");
  } else {
    const PublishedCheckpoint& last = *record.checkpoints().rbegin();
    absl::StrAppend(&reason, "; step ", last.step(),
                    " is saved: to continue, submit it again with checkpoint.resume_from ",
                    record.spec().train().checkpoint().path());
  }
  Fail(job, reason, transaction);
}

void Jobs::Cancel(JobEntry& job, const std::string& reason, Transaction& transaction) {
  job.machine.Cancel(transaction.now);
  Finish(job, "job.cancelled", absl::StrCat("was ", reason.empty() ? "cancelled" : reason), reason, transaction);
}

void Jobs::Finish(JobEntry& job, const std::string& kind, const std::string& event, const std::string& reason,
                  Transaction& transaction) {
  plans_->DropAll(job.id());
  records_->NoteEnd(job.id(), transaction.now.steady);
  job.time.Enter(TimeTracker::Phase::kOver, transaction.now.steady);
  job.machine.fields().set_reason(reason);
  transaction.Touch(job.id());
  transaction.AddEvent(&job, job.record().generation(), "", kind, absl::StrCat(job.record().id(), " ", event));
}

void Jobs::KeepTimes(Transaction& transaction) {
  for (const JobId& id : transaction.jobs) {
    JobEntry* job = records_->FindJob(id);
    if (job == nullptr) continue;
    *job->machine.fields().mutable_time_breakdown() = job->time.UpTo(transaction.now.steady);
    CountHeld(*job, transaction);
    job->store_times_at = AfterWhole(transaction.now.steady, StoreTimesEvery(*job));
  }
}

// Waiting and pauses cost nothing and limit nothing, so of their time more may be lost.
absl::Duration Jobs::StoreTimesEvery(const JobEntry& job) const {
  return options_->store_times_every * (job.machine.active() ? 1 : kStoredSeldom);
}

void Jobs::StoreDueTimes(Transaction& transaction) const {
  for (const JobEntry* job : std::as_const(*records_).Live()) {
    if (!job->store_times_at.has_value() || transaction.now.steady < *job->store_times_at) continue;
    if (transaction.Full()) return;
    transaction.Touch(job->id());
  }
}

void Jobs::Recover(JobEntry& job, Now now) {
  job.time = TimeTracker(job.record().time_breakdown(), PhaseOf(job), DoneStep(job.record()), now.steady);
  // Not all in the same moment.
  const auto part = static_cast<int64_t>(job.record().sequence() % kStoreTimesParts) + 1;
  job.store_times_at = AfterWhole(now.steady, StoreTimesEvery(job) * part / kStoreTimesParts);
  if (job.machine.state() == JOB_STATE_QUEUED && job.record().restarts_without_progress() > 0) {
    job.not_before = now.steady + Backoff(job.record());
  }
}

std::string NameOf(JobState state) {
  return absl::AsciiStrToLower(std::string(absl::StripPrefix(JobState_Name(state), "JOB_STATE_")));
}

}  // namespace muster::core
