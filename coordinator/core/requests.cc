#include "coordinator/core/requests.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/counted.h"
#include "common/name.h"
#include "common/node/node_selector.h"
#include "common/proto_time.h"
#include "common/utf8.h"
#include "coordinator/core/job_paths.h"
#include "coordinator/core/job_plan.h"
#include "coordinator/core/replicas.h"
#include "coordinator/core/reservations.h"

namespace muster::core {
namespace {

constexpr size_t kRequestIdBytes = 64;

constexpr size_t kMostLabels = 64;
constexpr size_t kNoteBytes = 1024;
constexpr size_t kSpecBytes = 64 * 1024;  // every assignment repeats it

constexpr size_t kTemplateBytes = 64 * 1024;
constexpr size_t kMostTemplates = 1000, kMostTemplatesOfUser = 100;

constexpr size_t kMostWaitingForDeleted = 32;  // they are stored with one commit

// Each demand with a node_selector or a topology in the queue costs a scheduling pass a look at all nodes.
constexpr size_t kSelectiveDemandsOfUser = 256;

// What makes jobs with a selector or a topology different kinds of the queue.
void NoteDemand(const JobSpec& spec, std::set<std::string>& demands) {
  const Resources& resources = spec.resources();
  if (resources.node_selector().empty() && !resources.has_topology() && resources.reservation().empty()) return;
  demands.insert(absl::StrCat(resources.SerializeAsString(), "/", LeastGroupOf(spec), "/", TensorRanksOf(spec), "/",
                              spec.project()));
}

std::string StateName(JobState state) {
  switch (state) {
    case JOB_STATE_COMPLETED:
      return "completed already";
    case JOB_STATE_FAILED:
      return "failed already";
    case JOB_STATE_CANCELLED:
      return "was cancelled already";
    default:
      return "has not ended";
  }
}

absl::Status CheckTemplate(const SetTemplate& event) {
  if (!IsName(event.name)) {
    return absl::InvalidArgumentError(
        "the name of a template may have 1 to 40 characters of a-z, 0-9 and -, and begins and ends with none of -");
  }
  if (event.text.empty() || event.text.size() > kTemplateBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a template has 1 to ", kTemplateBytes, " bytes, this one has ", event.text.size()));
  }
  // Others show it on their terminals.
  for (absl::string_view line : absl::StrSplit(event.text, '\n')) {
    absl::ConsumeSuffix(&line, "\r");
    const std::string visible = absl::StrReplaceAll(line, {{"\t", " "}});
    if (CleanText(visible, visible.size()) != visible) {
      return absl::InvalidArgumentError("a template is text: it has a character that is not printable");
    }
  }
  return absl::OkStatus();
}

absl::Status AlreadyEnded(const JobEntry& job) {
  return absl::FailedPreconditionError(absl::StrCat(job.record().id(), " ", StateName(job.machine.state())));
}

}  // namespace

void Requests::On(const SubmitJob& event, Transaction& transaction) {
  if (event.request_id.empty() || event.request_id.size() > kRequestIdBytes) {
    transaction.status =
        absl::InvalidArgumentError(absl::StrCat("a request id has 1 to ", kRequestIdBytes, " characters"));
    return;
  }
  if (event.spec.ByteSizeLong() > kSpecBytes) {
    transaction.status = absl::InvalidArgumentError(
        absl::StrCat("the spec has ", event.spec.ByteSizeLong(), " bytes, the limit is ", kSpecBytes));
    return;
  }
  if (const JobEntry* known = records_->FindRequest(event.owner, event.request_id); known != nullptr) {
    const Job& job = known->record();
    JobSpec again = event.spec;
    if (ReplicasOf(again) > 1) again = SpecOfReplica(again, job.spec().train().sync().run(), 0);
    ExpandPlaceholders(known->id(), again);
    if (job.spec().SerializeAsString() == again.SerializeAsString()) {
      transaction.submitted = known->id();
      transaction.reason = absl::StrCat("request ", event.request_id, " is already ", job.id());
    } else {
      transaction.status = absl::AlreadyExistsError(
          absl::StrCat("request id ", event.request_id, " belongs to ", job.id(), ", which is another job"));
    }
    return;
  }
  uint64_t waiting = 0;
  Queued own;
  for (const JobEntry* job : std::as_const(*records_).Live()) {
    if (job->machine.state() != JOB_STATE_QUEUED) continue;
    ++waiting;
    if (job->record().owner() != event.owner) continue;
    ++own.jobs;
    NoteDemand(job->record().spec(), own.selective_demands);
  }
  if (waiting + ReplicasOf(event.spec) > options_->max_queued_jobs) {
    transaction.status = absl::ResourceExhaustedError(absl::StrCat(
        "the queue is full: ", Counted(waiting, "job is", "jobs are"), " waiting; cancel some, or try again later"));
    return;
  }
  transaction.status = CheckUser(event, std::move(own), transaction.now.steady);
  if (!transaction.status.ok()) return;
  transaction.status = CheckAfter(event.spec);
  if (!transaction.status.ok()) return;
  const absl::StatusOr<std::string> project = projects_->For(event.owner, event.spec);
  if (!project.ok()) {
    transaction.status = project.status();
    return;
  }
  transaction.status = CheckReservation(event.spec, event.owner, *project, *records_);
  if (!transaction.status.ok()) return;
  if (event.plan.has_value()) plans_->Offer(*event.plan);
  const uint32_t replicas = ReplicasOf(event.spec);
  // A client's request ids have no spaces, so none of the user's other requests has this one.
  const auto request_of = [&](uint32_t replica) {
    return replica == 0 ? event.request_id : absl::StrCat(event.request_id, " replica ", replica);
  };
  for (uint32_t replica = 1; replica < replicas; ++replica) {
    const JobEntry* known = records_->FindRequest(event.owner, request_of(replica));
    if (known == nullptr) continue;
    transaction.status = absl::AlreadyExistsError(
        absl::StrCat("request id ", event.request_id, " belongs to the run of ", known->record().id(),
                     ", of which the first replica was deleted; submit with another request id"));
    return;
  }
  std::string id = absl::StrCat(event.spec.name(), "-", event.suffix);
  const auto taken = [&] { return records_->jobs.contains(JobId(id)) || records_->runs.contains(id); };
  for (int n = 2; taken(); ++n) id = absl::StrCat(event.spec.name(), "-", event.suffix, n);
  std::vector<JobSpec> specs;
  for (uint32_t replica = 0; replica < replicas; ++replica) {
    specs.push_back(replicas == 1 ? event.spec : SpecOfReplica(event.spec, id, replica));
    ExpandPlaceholders(replicas == 1 ? JobId(id) : JobOfReplica(id, replica), specs.back());
    if (const std::string conflict = records_->FolderConflict(specs.back()); !conflict.empty()) {
      transaction.status = absl::FailedPreconditionError(conflict);
      return;
    }
  }
  if (replicas == 1) {
    transaction.submitted = JobId(id);
    return Add(event, transaction.submitted, event.request_id, std::move(specs[0]), *project, transaction);
  }
  SyncRun run;
  run.set_id(id);
  run.set_replicas(replicas);
  run.set_secret(event.secret);
  for (uint32_t i = 0; i < event.spec.train().sync().fragments(); ++i) run.add_fragments();
  records_->runs.emplace(id, RunEntry(std::move(run)));
  transaction.TouchRun(id);
  transaction.submitted = JobOfReplica(id, 0);
  for (uint32_t replica = 0; replica < replicas; ++replica) {
    Add(event, JobOfReplica(id, replica), request_of(replica), std::move(specs[replica]), *project, transaction);
  }
}

absl::Status Requests::CheckAfter(const JobSpec& spec) const {
  for (const std::string& id : spec.after()) {
    const JobEntry* job = records_->FindJob(JobId(id));
    if (job == nullptr) return absl::NotFoundError(absl::StrCat("after: there is no job \"", id, "\""));
    const JobState state = job->machine.state();
    if (state == JOB_STATE_FAILED || state == JOB_STATE_CANCELLED) {
      return absl::FailedPreconditionError(
          absl::StrCat("after: ", id, state == JOB_STATE_FAILED ? " has failed" : " was cancelled"));
    }
  }
  return absl::OkStatus();
}

std::vector<JobEntry*> Requests::StillWaitingFor(const JobEntry& job) const {
  std::vector<JobEntry*> waiting;
  if (job.machine.state() != JOB_STATE_COMPLETED) return waiting;
  for (JobEntry* other : records_->Live()) {
    const auto& before = other->record().waits_for();
    if (std::find(before.begin(), before.end(), job.record().id()) != before.end()) waiting.push_back(other);
  }
  return waiting;
}

void Requests::NoteCompleted(const JobId& id, JobEntry& waiting, Transaction& transaction) {
  auto& before = *waiting.machine.fields().mutable_waits_for();
  before.erase(std::remove(before.begin(), before.end(), id.value()), before.end());
  transaction.Touch(waiting.id());
}

absl::Status Requests::CheckUser(const SubmitJob& event, Queued own, SteadyTime now) {
  const int32_t priority = event.spec.priority();
  if (priority < options_->lowest_priority || priority > options_->highest_priority) {
    return absl::InvalidArgumentError(absl::StrCat("priority: must be ", options_->lowest_priority, " to ",
                                                   options_->highest_priority, " on this coordinator, got ", priority));
  }
  const uint32_t ranks = event.spec.resources().ranks(), most_ranks = options_->max_running_ranks_of_user;
  if (most_ranks > 0 && ranks > most_ranks) {
    return absl::InvalidArgumentError(absl::StrCat("resources.ranks: ", ranks, " is above this coordinator's limit of ",
                                                   most_ranks, " running ranks a user"));
  }
  if (const uint32_t most = options_->max_queued_jobs_of_user; most > 0) {
    if (own.jobs + ReplicasOf(event.spec) > most) {
      return absl::ResourceExhaustedError(absl::StrCat(event.owner, " has ", own.jobs,
                                                       " queued jobs, and the limit is ", most,
                                                       ": cancel some, or try again later"));
    }
  }
  NoteDemand(event.spec, own.selective_demands);
  if (own.selective_demands.size() > kSelectiveDemandsOfUser) {
    return absl::ResourceExhaustedError(absl::StrCat(
        event.owner, " has jobs in the queue with ", kSelectiveDemandsOfUser,
        " different node selectors, topologies and numbers of ranks, which is the limit: cancel some, or try again "
        "later"));
  }
  if (Count(event.owner, now, submits_)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(event.owner, " has submitted ", options_->max_submits_of_user,
                                                   " jobs within a minute, which is the limit: try again later"));
}

bool Requests::Count(const std::string& user, SteadyTime now, Calls& calls) const {
  if (options_->max_submits_of_user == 0) return true;
  for (auto& [of, times] : calls) {
    while (!times.empty() && now - times.front() >= absl::Minutes(1)) times.pop_front();
  }
  std::erase_if(calls, [](const auto& entry) { return entry.second.empty(); });
  std::deque<SteadyTime>& times = calls[user];
  if (times.size() >= options_->max_submits_of_user) return false;
  times.push_back(now);
  return true;
}

absl::Status Requests::CheckChanges(const std::string& user, SteadyTime now) {
  if (user.empty() || Count(user, now, changes_)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(user, " has changed labels, notes and templates ",
                                                   options_->max_submits_of_user,
                                                   " times within a minute, which is the limit: try again later"));
}

void Requests::PruneEnded(Transaction& transaction) {
  while (const auto* first = records_->FirstEnded()) {
    const bool old = transaction.now.steady - first->first >= options_->keep_ended_for;
    if (!old && records_->ended_jobs() <= options_->max_ended_jobs) return;
    const JobId id = first->second;
    for (JobEntry* other : StillWaitingFor(records_->jobs.at(id))) {
      if (transaction.Full()) return;
      NoteCompleted(id, *other, transaction);
    }
    if (transaction.Full()) return;
    transaction.jobs.erase(id);
    transaction.Do(ForgetJob{id});
    records_->Delete(id, transaction);
  }
}

void Requests::Add(const SubmitJob& event, const JobId& id, const std::string& request_id, JobSpec spec,
                   const std::string& project, Transaction& transaction) {
  Job record;
  record.set_id(id.value());
  record.set_owner(event.owner);
  record.set_project(project);
  record.set_request_id(request_id);
  *record.mutable_spec() = std::move(spec);
  *record.mutable_waits_for() = record.spec().after();
  record.set_reservation(record.spec().resources().reservation());
  *record.mutable_labels() = record.spec().labels();
  record.set_state(JOB_STATE_QUEUED);
  *record.mutable_submitted() = ToProto(transaction.now.wall);
  JobEntry& job = records_->Add(std::move(record));
  job.time = TimeTracker(TimeBreakdown(), TimeTracker::Phase::kQueued, 0, transaction.now.steady);
  if (job.least_ranks() < event.spec.resources().ranks())
    job.whole_until = transaction.now.steady + options_->whole_wait;
  transaction.Touch(id);
  transaction.AddEvent(&job, 0, "", "job.queued", absl::StrCat(id.value(), " was submitted by ", event.owner));
}

void Requests::On(const CancelJob& event, Transaction& transaction) {
  JobEntry* job = records_->NeedJob(event.job, transaction);
  if (job == nullptr) return;
  const JobState state = job->machine.state();
  if (state == JOB_STATE_CANCELLED) return;
  if (job->machine.ended()) {
    transaction.status = AlreadyEnded(*job);
  } else if (job->machine.active()) {
    generations_->Stop(*job, END_REASON_CANCELLED, STOP_INTENT_CANCEL, "cancelled by its user", transaction);
  } else {
    jobs_->Cancel(*job, job->generations.empty() ? "cancelled before it started" : "cancelled while it was not running",
                  transaction);
  }
}

void Requests::On(const PauseJob& event, Transaction& transaction) {
  JobEntry* job = records_->NeedJob(event.job, transaction);
  if (job == nullptr || job->machine.state() == JOB_STATE_PAUSED) return;
  if (job->machine.ended()) {
    transaction.status = AlreadyEnded(*job);
  } else if (job->machine.active()) {
    if (job->record().stop_intent() == STOP_INTENT_CANCEL) {
      transaction.status = absl::FailedPreconditionError(absl::StrCat(job->record().id(), " is being cancelled"));
      return;
    }
    generations_->Stop(*job, END_REASON_PAUSED, STOP_INTENT_PAUSE, "paused by its user", transaction);
  } else {
    jobs_->Pause(*job, "paused by its user", transaction);
  }
}

void Requests::On(const ResumeJob& event, Transaction& transaction) {
  JobEntry* job = records_->NeedJob(event.job, transaction);
  if (job == nullptr) return;
  if (job->machine.ended()) {
    transaction.status = AlreadyEnded(*job);
  } else if (job->machine.state() == JOB_STATE_PAUSED) {
    job->machine.fields().clear_refused_by();  // what nodes lacked may be there now
    LeaveLostReservation(*job, *records_);
    jobs_->Requeue(*job, "resumed by its user", absl::ZeroDuration(), transaction);
  } else if (job->record().stop_intent() == STOP_INTENT_PAUSE) {
    // It is still on its way to the pause: it goes through the queue instead.
    LeaveLostReservation(*job, *records_);
    jobs_->ChangeIntent(*job, STOP_INTENT_REQUEUE, "resumed by its user: it is requeued when it has stopped",
                        transaction);
  }
}

void Requests::On(const TraceJob& event, Transaction& transaction) {
  JobEntry* job = records_->NeedJob(event.job, transaction);
  if (job == nullptr) return;
  if (job->machine.state() != JOB_STATE_RUNNING) {
    transaction.status = absl::FailedPreconditionError(absl::StrCat(
        event.job.value(), " is ", NameOf(job->machine.state()), ", not running: there is no step to trace"));
    return;
  }
  const int ranks = job->newest()->record().ranks_size();
  for (const uint32_t rank : event.ranks) {
    if (rank < static_cast<uint32_t>(ranks)) continue;
    transaction.status =
        absl::InvalidArgumentError(absl::StrCat(event.job.value(), " has ranks 0 to ", ranks - 1, ", not ", rank));
    return;
  }
  job->running->trace = event.request;
  job->running->traced = {event.ranks.begin(), event.ranks.end()};
  transaction.ChangeDesired(*job->newest());
}

void Requests::On(const DeleteJob& event, Transaction& transaction) {
  JobEntry* job = records_->FindJob(event.job);
  if (job == nullptr) return;  // a retry; what is left of its history goes when the coordinator starts
  if (!job->machine.ended()) {
    transaction.status = absl::FailedPreconditionError(
        absl::StrCat(event.job.value(), " has not ended: cancel it first (muster cancel ", event.job.value(), ")"));
    return;
  }
  const std::vector<JobEntry*> waiting = StillWaitingFor(*job);
  if (waiting.size() > kMostWaitingForDeleted) {
    transaction.status =
        absl::FailedPreconditionError(absl::StrCat(waiting.size(), " jobs come after ", event.job.value(),
                                                   ", and have not noted that it has completed: try again later"));
    return;
  }
  for (JobEntry* other : waiting) NoteCompleted(event.job, *other, transaction);
  transaction.Do(ForgetJob{event.job});
  transaction.reason = absl::StrCat(event.job.value(), " was deleted");
  records_->Delete(event.job, transaction);
}

void Requests::On(const LabelJob& event, Transaction& transaction) {
  JobEntry* job = records_->NeedJob(event.job, transaction);
  if (job == nullptr) return;
  std::map<std::string, std::string> by_key;
  for (const std::string& label : job->record().labels()) by_key[LabelKey(label)] = label;
  for (const std::string& key : event.remove) by_key.erase(key);
  for (const std::string& label : event.set) {
    transaction.status = CheckLabel(label);
    if (!transaction.status.ok()) return;
    by_key[LabelKey(label)] = label;
  }
  if (by_key.size() > kMostLabels) {
    transaction.status = absl::InvalidArgumentError(
        absl::StrCat("a job has at most ", kMostLabels, " labels, this one would have ", by_key.size()));
    return;
  }
  google::protobuf::RepeatedPtrField<std::string> labels;
  for (const auto& [key, label] : by_key) *labels.Add() = label;
  if (std::equal(labels.begin(), labels.end(), job->record().labels().begin(), job->record().labels().end())) return;
  transaction.status = CheckChanges(event.user, transaction.now.steady);
  if (!transaction.status.ok()) return;
  job->machine.fields().mutable_labels()->Swap(&labels);
  transaction.Touch(event.job);
}

void Requests::On(const NoteJob& event, Transaction& transaction) {
  JobEntry* job = records_->NeedJob(event.job, transaction);
  if (job == nullptr || job->record().note() == event.text) return;
  if (event.text.size() > kNoteBytes || CleanText(event.text, kNoteBytes) != event.text) {
    transaction.status =
        absl::InvalidArgumentError(absl::StrCat("a note is one line of text, of at most ", kNoteBytes, " bytes"));
    return;
  }
  transaction.status = CheckChanges(event.user, transaction.now.steady);
  if (!transaction.status.ok()) return;
  job->machine.fields().set_note(event.text);
  transaction.Touch(event.job);
}

void Requests::On(const CheckpointJob& event, Transaction& transaction) {
  JobEntry* job = records_->NeedJob(event.job, transaction);
  if (job == nullptr) return;
  if (job->record().spec().train().checkpoint().path().empty()) {
    transaction.status = absl::FailedPreconditionError(
        absl::StrCat(event.job.value(), " writes no checkpoints: its spec has no checkpoint.path"));
    return;
  }
  if (job->machine.state() != JOB_STATE_RUNNING) {
    transaction.status = absl::FailedPreconditionError(absl::StrCat(
        event.job.value(), " is ", NameOf(job->machine.state()), ", not running: it has nothing new to write"));
    return;
  }
  job->running->checkpoint_request = event.request_number;
  transaction.ChangeDesired(*job->newest());
}

void Requests::On(const SetTemplate& event, Transaction& transaction) {
  std::map<std::string, Template>& templates = records_->templates;
  const auto known = templates.find(event.name);
  if (known != templates.end() && known->second.text() == event.text) return;
  transaction.status = CheckTemplate(event);
  if (!transaction.status.ok()) return;
  if (known == templates.end()) {
    const auto own = std::count_if(templates.begin(), templates.end(),
                                   [&](const auto& entry) { return entry.second.owner() == event.user; });
    if (templates.size() >= kMostTemplates || own >= static_cast<ptrdiff_t>(kMostTemplatesOfUser)) {
      transaction.status = absl::ResourceExhaustedError(
          templates.size() >= kMostTemplates
              ? absl::StrCat("there are ", kMostTemplates, " templates already: delete some")
              : absl::StrCat(event.user, " has ", kMostTemplatesOfUser, " templates already: delete some"));
      return;
    }
  }
  transaction.status = CheckChanges(event.user, transaction.now.steady);
  if (!transaction.status.ok()) return;
  Template& record = templates[event.name];
  if (known == templates.end()) {
    record.set_name(event.name);
    record.set_owner(event.user);
  }
  record.set_text(event.text);
  *record.mutable_changed() = ToProto(transaction.now.wall);
  transaction.templates.insert(event.name);
}

void Requests::On(const DeleteTemplate& event, Transaction& transaction) {
  if (records_->templates.erase(event.name) > 0) transaction.deleted_keys.push_back(TemplateKey(event.name));
}

}  // namespace muster::core
