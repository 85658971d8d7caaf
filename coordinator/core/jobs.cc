// Jobs: what users ask for, and what a job becomes when a generation of it has ended.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/state.h"

namespace muster::core {
namespace {

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

// How far the job has got for good: what a restart begins with, or without checkpoints how far it came.
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

void Core::State::On(const SubmitJob& event, Turn& turn) {
  if (const auto known = by_request.find(event.request_id); known != by_request.end()) {
    const Job& job = jobs.at(known->second).record();
    if (job.owner() == event.owner && job.spec().SerializeAsString() == event.spec.SerializeAsString()) {
      turn.submitted = known->second;
      turn.reason = absl::StrCat("request ", event.request_id, " is ", job.id(), " already");
    } else {
      turn.status = absl::AlreadyExistsError(
          absl::StrCat("request id ", event.request_id, " belongs to ", job.id(), ", which is another job"));
    }
    return;
  }
  const std::vector<JobId> queue = Queue();
  if (queue.size() >= options.max_queued_jobs) {
    turn.status = absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", queue.size(), " jobs wait; cancel some, or try again later"));
    return;
  }
  JobId id(absl::StrCat(event.spec.name(), "-", event.suffix));
  for (int n = 2; jobs.contains(id); ++n) id = JobId(absl::StrCat(event.spec.name(), "-", event.suffix, n));

  Job record;
  record.set_id(id.value());
  record.set_owner(event.owner);
  record.set_request_id(event.request_id);
  *record.mutable_spec() = event.spec;
  record.set_state(JOB_STATE_QUEUED);
  *record.mutable_submitted() = ToTimestamp(turn.now.wall);
  record.set_sequence(next_sequence++);
  JobEntry& job = jobs.emplace(id, JobEntry{JobMachine(std::move(record)), {}, {}, {}, 0}).first->second;
  by_request[event.request_id] = id;
  turn.submitted = id;
  turn.Touch(id);
  turn.Tell(&job, 0, "", "job.queued", absl::StrCat(id.value(), " was submitted by ", event.owner));
}

void Core::State::On(const CancelJob& event, Turn& turn) {
  JobEntry* job = NeedJob(event.job, turn);
  if (job == nullptr) return;
  const JobState state = job->machine.state();
  if (state == JOB_STATE_CANCELLED) return;
  if (job->machine.ended()) {
    turn.status = AlreadyEnded(*job);
  } else if (job->machine.active()) {
    Stop(*job, END_REASON_CANCELLED, STOP_INTENT_CANCEL, turn);
  } else {
    job->machine.Cancel(turn.now);
    Finish(*job, turn, "job.cancelled", absl::StrCat(job->record().id(), " was cancelled before it ran"));
  }
}

void Core::State::On(const PauseJob& event, Turn& turn) {
  JobEntry* job = NeedJob(event.job, turn);
  if (job == nullptr || job->machine.state() == JOB_STATE_PAUSED) return;
  if (job->machine.ended()) {
    turn.status = AlreadyEnded(*job);
  } else if (job->machine.active()) {
    if (job->record().stop_intent() == STOP_INTENT_CANCEL) {
      turn.status = absl::FailedPreconditionError(absl::StrCat(job->record().id(), " is being cancelled"));
      return;
    }
    Stop(*job, END_REASON_PREEMPTED, STOP_INTENT_PAUSE, turn);
  } else {
    job->machine.Pause();
    job->machine.fields().set_reason("paused by its user; muster resume queues it again");
    turn.Touch(event.job);
    turn.Tell(job, 0, "", "job.paused", absl::StrCat(job->record().id(), " is paused"));
  }
}

void Core::State::On(const ResumeJob& event, Turn& turn) {
  JobEntry* job = NeedJob(event.job, turn);
  if (job == nullptr) return;
  if (job->machine.ended()) {
    turn.status = AlreadyEnded(*job);
  } else if (job->machine.state() == JOB_STATE_PAUSED) {
    Requeue(*job, turn);
  } else if (job->record().stop_intent() == STOP_INTENT_PAUSE) {
    // It is still on its way to the pause: it goes through the queue instead.
    job->machine.Stop(STOP_INTENT_REQUEUE);
    turn.Touch(event.job);
    turn.Tell(job, 0, "", "job.resumed", absl::StrCat(job->record().id(), " will be queued again when it has stopped"));
  }
}

void Core::State::On(const DeleteJob& event, Turn& turn) {
  JobEntry* job = FindJob(event.job);
  if (job == nullptr) return;  // a retry
  if (!job->machine.ended()) {
    turn.status = absl::FailedPreconditionError(
        absl::StrCat(event.job.value(), " has not ended; cancel it first (muster cancel ", event.job.value(), ")"));
    return;
  }
  turn.deleted_keys.push_back(JobKey(event.job));
  for (const auto& [number, generation] : job->generations) {
    turn.deleted_keys.push_back(GenerationKey(event.job, number));
  }
  turn.Do(ForgetJob{event.job});
  turn.reason = absl::StrCat(event.job.value(), " is deleted");
  by_request.erase(job->record().request_id());
  jobs.erase(event.job);
}

void Core::State::Stop(JobEntry& job, EndReason reason, StopIntent intent, Turn& turn) {
  GenerationMachine& generation = *job.newest();
  const JobId id(job.record().id());
  const bool first = generation.state() != GENERATION_STATE_STOPPING;
  // A wish of the user's overrides what else the job was stopping for, never the other way round.
  const bool wish = intent == STOP_INTENT_CANCEL || intent == STOP_INTENT_PAUSE;
  if (!first && !wish) return;
  if (first) {
    generation.Stop(reason);
  } else if (generation.record().reason() != END_REASON_FAILED && generation.record().reason() != END_REASON_LOST) {
    generation.Stop(reason);
  }
  job.machine.Stop(intent);
  job.machine.fields().set_reason(absl::StrCat("stopping: ", Name(reason)));
  turn.Touch(id);
  turn.Touch(id, generation.record().number());
  ChangeDesiredOf(generation, turn);
  turn.Tell(&job, generation.record().number(), "", "job.stopping",
            absl::StrCat(id.value(), " is told to stop: ", Name(reason)));
  EndIfEmpty(job, generation.record().reason(), turn);
}

void Core::State::AfterGeneration(JobEntry& job, const GenerationMachine& generation, Turn& turn) {
  const std::string& id = job.record().id();
  const EndReason reason = generation.record().reason();
  job.start_deadline.reset();
  turn.Touch(JobId(id));
  if (reason == END_REASON_COMPLETED) {
    job.machine.Complete(turn.now);
    return Finish(job, turn, "job.completed", absl::StrCat(id, " has completed"));
  }
  const StopIntent intent = job.record().stop_intent();
  if (intent == STOP_INTENT_CANCEL) {
    job.machine.Cancel(turn.now);
    return Finish(job, turn, "job.cancelled", absl::StrCat(id, " was cancelled"));
  }
  if (intent == STOP_INTENT_PAUSE) {
    job.machine.Pause();
    job.machine.fields().set_reason("paused by its user; muster resume queues it again");
    return turn.Tell(&job, 0, "", "job.paused", absl::StrCat(id, " is paused"));
  }
  if (reason == END_REASON_FAILED || reason == END_REASON_LOST) return SpendRestart(job, reason, turn);
  Requeue(job, turn);
}

// Only failed and lost count against the restarts, and only while nothing is gained between them.
void Core::State::SpendRestart(JobEntry& job, EndReason reason, Turn& turn) {
  Job& record = job.machine.fields();
  const uint64_t progress = ProgressOf(job);
  if (progress > record.progress_step()) record.set_restarts_without_progress(0);
  record.set_progress_step(std::max(progress, record.progress_step()));
  const uint32_t allowed = record.spec().max_restarts();
  if (record.restarts_without_progress() >= allowed) {
    job.machine.Fail(turn.now);
    return Finish(job, turn, "job.failed",
                  absl::StrCat(record.id(), " has failed: ", record.failure().exit().message(),
                               allowed == 0 ? "" : absl::StrCat(" (", allowed, " restarts brought no progress)")));
  }
  record.set_restarts_without_progress(record.restarts_without_progress() + 1);
  record.set_restarts(record.restarts() + 1);
  Requeue(job, turn);
}

void Core::State::Requeue(JobEntry& job, Turn& turn) {
  job.machine.Queue();
  job.machine.fields().clear_reason();
  job.highest_step = 0;
  const uint32_t n = job.record().restarts_without_progress();
  job.not_before.reset();
  if (n > 0) {
    const absl::Duration backoff = options.backoff_base * (int64_t{1} << std::min(n - 1, 20u));
    job.not_before = turn.now.steady + std::min(backoff, options.backoff_max);
  }
  turn.Touch(JobId(job.record().id()));
  turn.Tell(&job, 0, "", "job.queued", absl::StrCat(job.record().id(), " is queued again"));
}

void Core::State::Finish(JobEntry& job, Turn& turn, const std::string& kind, const std::string& message) {
  job.machine.fields().set_reason(message.substr(std::min(message.size(), job.record().id().size() + 1)));
  turn.Touch(JobId(job.record().id()));
  turn.Tell(&job, job.record().generation(), "", kind, message);
}

}  // namespace muster::core
