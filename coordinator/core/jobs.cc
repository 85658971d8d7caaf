// Jobs: requests of users, and what a job becomes when one of its generations has ended.
#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/proto_time.h"
#include "coordinator/core/job_paths.h"
#include "coordinator/core/state.h"

namespace muster::core {
namespace {

constexpr size_t kRequestIdBytes = 64;
constexpr size_t kSpecBytes = 64 * 1024;  // every assignment repeats it

// "running"
std::string NameOf(JobState state) {
  return absl::AsciiStrToLower(std::string(absl::StripPrefix(JobState_Name(state), "JOB_STATE_")));
}

std::string StateName(JobState state) {
  switch (state) {
    case JOB_STATE_COMPLETED:
      return "completed";
    case JOB_STATE_FAILED:
      return "failed";
    case JOB_STATE_CANCELLED:
      return "been cancelled";
    default:
      return "not ended";
  }
}

// The step that a restart resumes from; for a job without checkpoints, the highest step that it reached.
uint64_t ProgressOf(const JobEntry& job) {
  const Job& record = job.record();
  if (record.spec().train().checkpoint().path().empty()) return job.highest_step;
  return record.checkpoints().empty() ? 0 : record.checkpoints().rbegin()->step();
}

absl::Status AlreadyEnded(const JobEntry& job) {
  return absl::FailedPreconditionError(
      absl::StrCat(job.record().id(), " has ", StateName(job.machine.state()), " already"));
}

}  // namespace

bool AdvanceProgress(Job& job, uint64_t step) {
  if (step <= job.progress_step()) return false;
  job.set_progress_step(step);
  job.set_restarts_without_progress(0);
  return true;
}

void Core::State::On(const SubmitJob& event, Transaction& transaction) {
  if (event.request_id.empty() || event.request_id.size() > kRequestIdBytes) {
    transaction.status =
        absl::InvalidArgumentError(absl::StrCat("a request id has 1 to ", kRequestIdBytes, " characters"));
    return;
  }
  if (event.spec.ByteSizeLong() > kSpecBytes) {
    transaction.status = absl::InvalidArgumentError(
        absl::StrCat("the spec has ", event.spec.ByteSizeLong(), " bytes, at most ", kSpecBytes, " are allowed"));
    return;
  }
  if (const auto known = by_request.find(event.request_id); known != by_request.end()) {
    const Job& job = jobs.at(known->second).record();
    JobSpec again = event.spec;
    ExpandPlaceholders(known->second, again);
    if (job.owner() == event.owner && job.spec().SerializeAsString() == again.SerializeAsString()) {
      transaction.submitted = known->second;
      transaction.reason = absl::StrCat("request ", event.request_id, " is ", job.id(), " already");
    } else {
      transaction.status = absl::AlreadyExistsError(
          absl::StrCat("request id ", event.request_id, " belongs to ", job.id(), ", which is another job"));
    }
    return;
  }
  if (const size_t waiting = Queue().size(); waiting >= options.max_queued_jobs) {
    transaction.status = absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", waiting, " jobs wait; cancel some, or try again later"));
    return;
  }
  if (event.plan.has_value()) plans.Offer(*event.plan);
  JobId id(absl::StrCat(event.spec.name(), "-", event.suffix));
  for (int n = 2; jobs.contains(id); ++n) id = JobId(absl::StrCat(event.spec.name(), "-", event.suffix, n));
  JobSpec spec = event.spec;
  ExpandPlaceholders(id, spec);
  if (const std::string conflict = FolderConflict(spec); !conflict.empty()) {
    transaction.status = absl::FailedPreconditionError(conflict);
    return;
  }

  Job record;
  record.set_id(id.value());
  record.set_owner(event.owner);
  record.set_request_id(event.request_id);
  *record.mutable_spec() = std::move(spec);
  record.set_state(JOB_STATE_QUEUED);
  *record.mutable_submitted() = ToProto(transaction.now.wall);
  record.set_sequence(next_sequence++);
  JobEntry& job = jobs.emplace(id, JobEntry{.machine = JobMachine(std::move(record))}).first->second;
  job.time = TimeTracker(TimeBreakdown(), TimeTracker::Phase::kQueued, 0, transaction.now.steady);
  if (LeastRanks(job) < event.spec.resources().ranks()) job.whole_until = transaction.now.steady + options.whole_wait;
  by_request[event.request_id] = id;
  AddFolder(job.record());
  transaction.submitted = id;
  transaction.Touch(id);
  transaction.AddEvent(&job, 0, "", "job.queued", absl::StrCat(id.value(), " was submitted by ", event.owner));
}

void Core::State::AddFolder(const Job& job) {
  const std::string& path = job.spec().train().checkpoint().path();
  if (!path.empty()) folders.emplace(NormalizedPath(path), JobId(job.id()));
}

void Core::State::RemoveFolder(const Job& job) {
  const std::string& path = job.spec().train().checkpoint().path();
  if (!path.empty()) folders.erase({NormalizedPath(path), JobId(job.id())});
}

std::string Core::State::FolderConflict(const JobSpec& spec) const {
  const std::string& path = spec.train().checkpoint().path();
  if (path.empty()) return "";
  const std::string folder = NormalizedPath(path);
  const auto first = folders.lower_bound({folder, JobId()});
  if (first == folders.end() || first->first != folder) return "";
  const JobEntry& other = jobs.at(first->second);
  const std::string& id = first->second.value();
  std::string conflict =
      absl::StrCat("checkpoint.path ", path, " belongs to job \"", other.record().spec().name(), "\" (", id, ", ",
                   NameOf(other.machine.state()), "): choose another path, or put {job} in it for a folder per job");
  if (other.machine.ended()) {
    absl::StrAppend(&conflict, "; to use the folder again, forget that job (muster delete ", id,
                    ") and move or remove its checkpoints");
  }
  return conflict;
}

void Core::State::On(const CancelJob& event, Transaction& transaction) {
  JobEntry* job = NeedJob(event.job, transaction);
  if (job == nullptr) return;
  const JobState state = job->machine.state();
  if (state == JOB_STATE_CANCELLED) return;
  if (job->machine.ended()) {
    transaction.status = AlreadyEnded(*job);
  } else if (job->machine.active()) {
    Stop(*job, END_REASON_CANCELLED, STOP_INTENT_CANCEL, "cancelled by its user", transaction);
  } else {
    job->machine.Cancel(transaction.now);
    Finish(*job, transaction, "job.cancelled",
           absl::StrCat(job->record().id(), " was cancelled ",
                        job->generations.empty() ? "before it ran" : "while it did not run"));
  }
}

void Core::State::On(const PauseJob& event, Transaction& transaction) {
  JobEntry* job = NeedJob(event.job, transaction);
  if (job == nullptr || job->machine.state() == JOB_STATE_PAUSED) return;
  if (job->machine.ended()) {
    transaction.status = AlreadyEnded(*job);
  } else if (job->machine.active()) {
    if (job->record().stop_intent() == STOP_INTENT_CANCEL) {
      transaction.status = absl::FailedPreconditionError(absl::StrCat(job->record().id(), " is being cancelled"));
      return;
    }
    Stop(*job, END_REASON_PREEMPTED, STOP_INTENT_PAUSE, "paused by its user", transaction);
  } else {
    EnterPaused(*job, transaction);
  }
}

void Core::State::On(const ResumeJob& event, Transaction& transaction) {
  JobEntry* job = NeedJob(event.job, transaction);
  if (job == nullptr) return;
  if (job->machine.ended()) {
    transaction.status = AlreadyEnded(*job);
  } else if (job->machine.state() == JOB_STATE_PAUSED) {
    Requeue(*job, "resumed by its user", absl::ZeroDuration(), transaction);
  } else if (job->record().stop_intent() == STOP_INTENT_PAUSE) {
    // It is still on its way to the pause: it goes through the queue instead.
    ChangeIntent(*job, STOP_INTENT_REQUEUE, "resumed by its user: it is queued again when it has stopped", transaction);
  }
}

void Core::State::On(const TraceJob& event, Transaction& transaction) {
  JobEntry* job = NeedJob(event.job, transaction);
  if (job == nullptr) return;
  if (job->machine.state() != JOB_STATE_RUNNING || job->newest() == nullptr) {
    transaction.status = absl::FailedPreconditionError(absl::StrCat(
        event.job.value(), " does not run, so there is no step to trace: it is ", NameOf(job->machine.state())));
    return;
  }
  const int ranks = job->newest()->record().ranks_size();
  for (const uint32_t rank : event.ranks) {
    if (rank < static_cast<uint32_t>(ranks)) continue;
    transaction.status =
        absl::InvalidArgumentError(absl::StrCat(event.job.value(), " has ranks 0 to ", ranks - 1, ", not ", rank));
    return;
  }
  job->trace = event.request;
  job->traced = {event.ranks.begin(), event.ranks.end()};
  ChangeDesiredOf(*job->newest(), transaction);
}

void Core::State::On(const DeleteJob& event, Transaction& transaction) {
  JobEntry* job = FindJob(event.job);
  if (job == nullptr) return;  // a retry; what is left of its history goes when the coordinator starts
  if (!job->machine.ended()) {
    transaction.status = absl::FailedPreconditionError(
        absl::StrCat(event.job.value(), " has not ended; cancel it first (muster cancel ", event.job.value(), ")"));
    return;
  }
  transaction.deleted_keys.push_back(JobKey(event.job));
  for (const auto& [number, generation] : job->generations) {
    transaction.deleted_keys.push_back(GenerationKey(event.job, number));
  }
  transaction.Do(ForgetJob{event.job});
  transaction.reason = absl::StrCat(event.job.value(), " is deleted");
  by_request.erase(job->record().request_id());
  RemoveFolder(job->record());
  jobs.erase(event.job);
}

void Core::State::Stop(JobEntry& job, EndReason reason, StopIntent intent, const std::string& why,
                       Transaction& transaction) {
  GenerationMachine& generation = *job.newest();
  const JobId id(job.record().id());
  const uint64_t number = generation.record().number();
  if (generation.state() == GENERATION_STATE_STOPPING) {
    const bool by_user = intent == STOP_INTENT_CANCEL || intent == STOP_INTENT_PAUSE;
    if (!by_user || job.record().stop_intent() == intent) return;
    // The ranks are already stopping. Only a stop that a fault started stays a fault.
    if (!IsFault(generation.record().reason())) generation.Stop(reason);
    transaction.Touch(id, number);
    return ChangeIntent(job, intent, why, transaction);
  }
  generation.Stop(reason);
  plans.Drop(id, Plans::Purpose::kGrowth);
  if (IsFault(reason)) {
    job.time.Fault(transaction.now.steady);
  } else if (intent == STOP_INTENT_REQUEUE) {
    job.time.Enter(TimeTracker::Phase::kRecovering, transaction.now.steady);
  }
  job.start_deadline.reset();
  job.stop_overdue = transaction.now.steady + 2 * StopDeadline(job.record(), reason);
  transaction.Touch(id, number);
  ChangeDesiredOf(generation, transaction);
  ChangeIntent(job, intent, why, transaction);
}

void Core::State::ChangeIntent(JobEntry& job, StopIntent intent, const std::string& why, Transaction& transaction) {
  job.machine.Stop(intent);
  job.machine.fields().set_reason(why);
  transaction.Touch(JobId(job.record().id()));
  transaction.AddEvent(&job, job.record().generation(), "", "job.stopping",
                       absl::StrCat(job.record().id(), " is stopping: ", why));
}

void Core::State::AfterGeneration(JobEntry& job, const GenerationMachine& generation, Transaction& transaction) {
  const std::string& id = job.record().id();
  const EndReason reason = generation.record().reason();
  job.start_deadline.reset();
  job.stop_overdue.reset();
  job.plan.reset();
  plans.DropAll(JobId(id));
  job.grow_at.reset();
  job.progress.clear();
  if (IsFault(reason)) job.time.Fault(transaction.now.steady);
  transaction.Touch(JobId(id));
  if (reason == END_REASON_COMPLETED) {
    job.machine.Complete(transaction.now);
    return Finish(job, transaction, "job.completed", absl::StrCat(id, " has completed"));
  }
  const StopIntent intent = job.record().stop_intent();
  if (intent == STOP_INTENT_CANCEL) {
    job.machine.Cancel(transaction.now);
    return Finish(job, transaction, "job.cancelled", absl::StrCat(id, " was cancelled"));
  }
  if (intent == STOP_INTENT_PAUSE) return EnterPaused(job, transaction);
  if (IsFault(reason)) return SpendRestart(job, transaction);
  Requeue(job, absl::StrCat("queued again, since its last generation was ", Name(reason)), absl::ZeroDuration(),
          transaction);
}

void Core::State::EnterPaused(JobEntry& job, Transaction& transaction) {
  plans.DropAll(JobId(job.record().id()));
  job.machine.Pause();
  job.time.Enter(TimeTracker::Phase::kPaused, transaction.now.steady);
  job.machine.fields().set_reason("paused by its user; muster resume queues it again");
  job.not_before.reset();
  transaction.Touch(JobId(job.record().id()));
  transaction.AddEvent(&job, 0, "", "job.paused", absl::StrCat(job.record().id(), " is paused"));
}

// Only faults count against the restarts, and only while nothing is gained between them.
void Core::State::SpendRestart(JobEntry& job, Transaction& transaction) {
  Job& record = job.machine.fields();
  AdvanceProgress(record, ProgressOf(job));
  const uint32_t allowed = record.spec().max_restarts();
  const std::string& cause = record.failure().exit().message();
  if (record.failure().exit().cause() == RankExit::REFUSED && record.failure().generation() == record.generation()) {
    job.machine.Fail(transaction.now);
    return Finish(job, transaction, "job.failed", absl::StrCat(record.id(), " has failed: ", cause));
  }
  if (record.restarts_without_progress() >= allowed) {
    job.machine.Fail(transaction.now);
    return Finish(job, transaction, "job.failed",
                  absl::StrCat(record.id(), " has failed: ", cause,
                               allowed == 0 ? "" : absl::StrCat(" (", allowed, " restarts brought no progress)")));
  }
  record.set_restarts_without_progress(record.restarts_without_progress() + 1);
  record.set_restarts(record.restarts() + 1);
  Requeue(job, absl::StrCat("restart ", record.restarts_without_progress(), " of ", allowed, " after: ", cause),
          Backoff(record), transaction);
}

absl::Duration Core::State::Backoff(const Job& job) const {
  const uint32_t n = job.restarts_without_progress();
  if (n == 0) return absl::ZeroDuration();
  return std::min(options.backoff_base * (int64_t{1} << std::min(n - 1, 20u)), options.backoff_max);
}

void Core::State::Requeue(JobEntry& job, const std::string& why, absl::Duration delay, Transaction& transaction) {
  job.machine.Queue();
  const bool rested = job.time.phase() == TimeTracker::Phase::kPaused;
  job.time.Enter(rested ? TimeTracker::Phase::kQueued : TimeTracker::Phase::kRecovering, transaction.now.steady);
  job.machine.fields().set_reason(why);
  job.not_before.reset();
  if (delay > absl::ZeroDuration()) job.not_before = transaction.now.steady + delay;
  transaction.Touch(JobId(job.record().id()));
  transaction.AddEvent(&job, 0, "", "job.queued", absl::StrCat(job.record().id(), ": ", why));
}

void Core::State::Finish(JobEntry& job, Transaction& transaction, const std::string& kind, const std::string& message) {
  plans.DropAll(JobId(job.record().id()));
  job.time.Enter(TimeTracker::Phase::kOver, transaction.now.steady);
  job.machine.fields().set_reason(message.substr(std::min(message.size(), job.record().id().size() + 1)));
  transaction.Touch(JobId(job.record().id()));
  transaction.AddEvent(&job, job.record().generation(), "", kind, message);
}

}  // namespace muster::core
