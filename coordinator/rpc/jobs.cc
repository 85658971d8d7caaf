#include "coordinator/rpc/jobs.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <system_error>
#include <type_traits>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/node/node_selector.h"
#include "common/rpc/rpc.h"
#include "common/utf8.h"
#include "coordinator/rpc/audited_call.h"
#include "coordinator/rpc/checkpoint_call.h"
#include "coordinator/rpc/free_space.h"
#include "coordinator/rpc/plan_call.h"
#include "coordinator/rpc/trace_call.h"
#include "coordinator/rpc/watch_stream.h"
#include "coordinator/spec/unknown_field.h"

namespace muster::rpc {
namespace {

using server::Turn;

constexpr size_t kMaxSpecBytes = 64 * 1024;  // a job's row is at most 512 KiB, and holds more than its spec
constexpr size_t kDetailBytes = 200, kMostDetails = 128;  // of an audit entry
constexpr uint32_t kShownGenerations = 100;
constexpr uint32_t kDefaultListLimit = 1000, kMostListed = 10'000;
constexpr size_t kListBytes = size_t{3} << 20;  // of jobs; their metrics and nodes come on top

// Four characters that are easy to read and to type.
std::string RandomSuffix() {
  static constexpr std::string_view kLetters = "abcdefghjkmnpqrstuvwxyz23456789";
  std::random_device source;
  std::uniform_int_distribution<size_t> letter(0, kLetters.size() - 1);
  std::string suffix;
  for (int i = 0; i < 4; ++i) suffix += kLetters[letter(source)];
  return suffix;
}

// 128 bits.
std::string RandomSecret() {
  std::random_device source;
  std::string secret;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&secret, absl::Hex(source(), absl::kZeroPad8));
  return secret;
}

absl::StatusOr<JobSpec> ResolveSpec(const spec::Limits& limits, const JobSpec& asked) {
  if (asked.ByteSizeLong() > kMaxSpecBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the spec has ", asked.ByteSizeLong(), " bytes, at most ", kMaxSpecBytes, " are allowed"));
  }
  // Stored, they would be part of the job, and mean something after an upgrade that no one has checked.
  if (const std::string unknown = spec::UnknownField(asked); !unknown.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the spec has a field that this coordinator does not know, ",
                                                   unknown, ": is the client newer (muster version)?"));
  }
  JobSpec resolved = asked;
  SpecErrors errors;
  for (SpecError& error : spec::Resolve(limits, resolved)) *errors.add_errors() = std::move(error);
  if (errors.errors_size() == 0) return resolved;
  absl::Status status = absl::InvalidArgumentError(
      absl::StrCat("the spec has ", errors.errors_size(), errors.errors_size() == 1 ? " error: " : " errors, first: ",
                   errors.errors(0).path(), ": ", errors.errors(0).message()));
  status.SetPayload(kErrorDetails, absl::Cord(errors.SerializeAsString()));
  return status;
}

// Notes how the CPUs that the ranks are placed on compute bf16.
void AddBf16Notes(const JobSpec& spec, const std::map<std::string, Cpu>& cpus, PlanReply& plan) {
  if (spec.train().precision().compute() != DTYPE_BF16) return;
  for (std::string& note : spec::Bf16Notes(cpus)) plan.add_notes(std::move(note));
}

// The plan on the slots where the job would run now, or in an idle cluster; on unknown slots if there are too few.
PlanReply PlanOnNodes(const PlanCall::Found& found, const JobSpec& resolved) {
  const core::Core::Placing& placing = found.placing;
  PlanReply plan = found.plan->reply;
  *plan.mutable_resolved() = resolved;
  for (RankPlan& rank : *plan.mutable_ranks()) {
    if (rank.rank() < placing.nodes.size()) rank.set_node(placing.nodes[rank.rank()].value());
  }
  AddBf16Notes(resolved, found.cpus, plan);
  if (const uint32_t all = resolved.resources().ranks(); found.on.slots.ranks.size() < all) {
    plan.add_notes(
        absl::StrCat("on ", found.on.slots.ranks.size(), " of ", all, " ranks, until there are slots for more"));
  }
  if (!placing.domains.empty()) plan.add_notes(absl::StrCat("topology: ", placing.domains));
  if (!found.folder_conflict.empty()) plan.add_notes(absl::StrCat("submit would be refused: ", found.folder_conflict));
  if (placing.nodes.empty() && placing.reason != plan.unfit()) {
    plan.add_notes(absl::StrCat("the job would wait: ", placing.reason));
  }
  return plan;
}

// Adds the nodes where a job that was just submitted was placed, if it was, to its plan.
void AddPlacesOf(const core::Core& core, const Job& job, PlanReply& plan) {
  const std::vector<Generation> generations = core.ListGenerations(JobId(job.id()));
  if (generations.empty()) {
    plan.add_notes(absl::StrCat("the job is queued: ", job.reason()));
    return;
  }
  const Generation& generation = generations.front();
  if (generation.table_sha256() != plan.table_sha256() || generation.schedule_digest() != plan.schedule_digest() ||
      generation.ranks_size() != plan.ranks_size()) {
    plan.add_notes("the job runs on other slots than those that this plan was made for");
    return;
  }
  std::vector<NodeId> nodes;
  for (RankPlan& rank : *plan.mutable_ranks()) {
    rank.set_node(generation.ranks(static_cast<int>(rank.rank())).node());
    nodes.emplace_back(rank.node());
  }
  AddBf16Notes(job.spec(), CpusOf(core, core::PlacedSlots(generation).device, nodes), plan);
}

// Of another user's private job: what the queue and the cluster look like from outside.
Job WhatAllSee(const Job& job) {
  Job seen;
  seen.set_id(job.id());
  seen.set_owner(job.owner());
  seen.mutable_spec()->set_name(job.spec().name());
  seen.mutable_spec()->set_priority(job.spec().priority());
  *seen.mutable_spec()->mutable_resources() = job.spec().resources();
  seen.set_state(job.state());
  if (job.state() == JOB_STATE_QUEUED) seen.set_reason(job.reason());
  *seen.mutable_submitted() = job.submitted();
  if (job.has_started()) *seen.mutable_started() = job.started();
  if (job.has_ended()) *seen.mutable_ended() = job.ended();
  seen.set_held_seconds(job.held_seconds());
  seen.set_sequence(job.sequence());
  seen.set_generation(job.generation());
  seen.set_queue_position(job.queue_position());
  return seen;
}

absl::Status CheckSelector(const google::protobuf::RepeatedPtrField<std::string>& selector) {
  if (selector.size() > 32) return absl::InvalidArgumentError("selector: at most 32 requirements are possible");
  for (const std::string& requirement : selector) {
    const absl::Status status = CheckLabelRequirement(requirement);
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("selector: ", status.message()));
  }
  return absl::OkStatus();
}

// Tries until the id is free; the suffix is random.
std::string FreeSuffix(const core::Core& core, const std::string& name) {
  std::string suffix = RandomSuffix();
  for (int i = 0; i < 16 && core.Stored(JobId(absl::StrCat(name, "-", suffix))) != nullptr; ++i) {
    suffix = RandomSuffix();
  }
  return suffix;
}

}  // namespace

// A job could replace the coordinator's keys. Both paths are this machine's; on others they may mean something else,
// but then the same name is a mistake, too.
absl::Status JobsService::CheckNotOwnFolder(const std::string& path) const {
  std::error_code ignored;
  const auto real = [&](const std::string& of) {
    return std::filesystem::weakly_canonical(of, ignored).string() + "/";
  };
  const std::string own = real(options_.state_dir), asked = real(path);
  if (path.empty() || (!absl::StartsWith(asked, own) && !absl::StartsWith(own, asked))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("checkpoint.path: ", path, " is, or holds, the coordinator's own folder, ", options_.state_dir));
}

grpc::ServerUnaryReactor* JobsService::Submit(grpc::CallbackServerContext* context, const SubmitRequest* request,
                                              SubmitReply* reply) {
  const absl::StatusOr<AuditedCall> admitted =
      AdmitChange(*gate_, *context, "/muster.v1.Jobs/Submit", "job", request->spec().name(), loop_);
  if (!admitted.ok()) return EndWith(admitted.status(), *context);
  const auto refuse = [&](const absl::Status& status) {
    return EndAudited(admitted->entry, status, /*changed=*/false, *context, loop_);
  };
  if (request->request_id().empty() || request->request_id().size() > 64) {
    return refuse(absl::InvalidArgumentError("request_id: 1 to 64 characters are needed"));
  }
  const absl::StatusOr<JobSpec> resolved = ResolveSpec(options_.limits, request->spec());
  if (!resolved.ok()) return refuse(resolved.status());
  if (absl::Status status = CheckNotOwnFolder(resolved->train().checkpoint().path()); !status.ok()) {
    return refuse(status);
  }
  if (absl::Status status = CheckFreeSpace(options_.state_dir, options_.min_free_bytes); !status.ok()) {
    return refuse(status);
  }

  PlanCall::Question question{
      .resolved = *resolved, .assumptions = {}, .whole = true, .user = admitted->caller.name, .audit = admitted->entry};
  const auto answer = [=, this, owner = admitted->caller.name, audited = *admitted](const PlanCall::Found& found,
                                                                                    PlanCall* call) {
    // Copied here: it may be large, and the loop has others to serve.
    *reply->mutable_plan() = found.plan->reply;
    *reply->mutable_plan()->mutable_resolved() = *resolved;
    core::PlanReady plan{core::PlanKey(*resolved, found.on.slots), found.plan->planned};
    loop_->Post([=, plan = std::move(plan)](Turn& turn) {
      core::SubmitJob submit{.request_id = request->request_id(),
                             .owner = owner,
                             .spec = *resolved,
                             .suffix = FreeSuffix(turn.core(), resolved->name()),
                             .secret = resolved->train().has_sync() ? RandomSecret() : "",
                             .plan = plan};
      const core::Outcome& outcome = turn.Handle(submit);
      turn.Audit(outcome.job.empty() ? audited.entry : audited.About("job", outcome.job.value()), outcome.status,
                 Turn::Changes(outcome));
      turn.AfterCommit([=, &outcome, &core = turn.core()] {
        if (outcome.status.ok()) {
          const absl::StatusOr<Job> job = core.GetJob(outcome.job);
          if (job.ok()) *reply->mutable_job() = *job;
          AddPlacesOf(core, reply->job(), *reply->mutable_plan());
        }
        call->Finish(ToGrpc(outcome.status));
      });
    });
  };
  return PlanCall::Start(std::move(question), loop_, answer);
}

grpc::ServerUnaryReactor* JobsService::Plan(grpc::CallbackServerContext* context, const PlanRequest* request,
                                            PlanReply* reply) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Jobs/Plan");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  const absl::StatusOr<JobSpec> resolved = ResolveSpec(options_.limits, request->spec());
  if (!resolved.ok()) return EndWith(resolved.status(), *context);
  PlanCall::Question question{.resolved = *resolved,
                              .assumptions = {request->hardware(), request->memory_bytes(), request->ops()},
                              .user = caller->name};
  return PlanCall::Start(std::move(question), loop_,
                         [=, this, spec = *resolved](const PlanCall::Found& found, PlanCall* call) {
                           *reply = PlanOnNodes(found, spec);
                           for (const TimeoutRule& rule : Rules(core::TimeoutsOf(options_.limits.timeouts, spec))) {
                             Timeout& timeout = *reply->add_timeouts();
                             timeout.set_name(rule.what);
                             timeout.set_seconds(absl::ToDoubleSeconds(rule.time));
                             timeout.set_rule(rule.rule);
                           }
                           call->Finish(grpc::Status::OK);
                         });
}

grpc::ServerUnaryReactor* JobsService::Get(grpc::CallbackServerContext* context, const GetJobRequest* request,
                                           GetJobReply* reply) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Jobs/Get");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, this](Turn& turn) {
    turn.AfterCommit([=, this, now = turn.now().steady, &core = turn.core(), &ledger = turn.ledger()] {
      const absl::StatusOr<JobId> id = core.Find(request->job());
      const absl::StatusOr<Job> job = id.ok() ? core.GetJob(*id, now) : id.status();
      if (!job.ok()) return reactor->Finish(ToGrpc(job.status()));
      const Resource resource{job->owner(), options_.private_jobs};
      if (absl::Status status = Authorize(*caller, "/muster.v1.Jobs/Get", resource); !status.ok()) {
        return reactor->Finish(ToGrpc(status));
      }
      *reply->mutable_job() = *job;
      const uint32_t most = request->generations() == 0 ? kShownGenerations : request->generations();
      for (Generation& generation : core.ListGenerations(*id, std::min(most, kShownGenerations))) {
        *reply->add_generations() = std::move(generation);
      }
      for (RankProgress& progress : core.ListProgress(*id)) *reply->add_progress() = std::move(progress);
      for (NodeLink& link : core.ListLinks(*id)) *reply->add_links() = std::move(link);
      *reply->mutable_last_metrics() = ledger.LastMetrics(*id);
      if (!options_.tensorboard_dir.empty()) {
        reply->set_tensorboard_directory(absl::StrCat(options_.tensorboard_dir, "/", id->value()));
      }
      reactor->Finish(grpc::Status::OK);
    });
  });
  return reactor;
}

grpc::ServerUnaryReactor* JobsService::List(grpc::CallbackServerContext* context, const ListJobsRequest* request,
                                            ListJobsReply* reply) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Jobs/List");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  if (absl::Status status = CheckSelector(request->selector()); !status.ok()) return EndWith(status, *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, this](Turn& turn) {
    turn.AfterCommit([=, this, &core = turn.core(), &ledger = turn.ledger(), now = turn.now().steady] {
      const uint32_t limit = std::min(request->limit() == 0 ? kDefaultListLimit : request->limit(), kMostListed);
      const LabelSelector selector(request->selector());
      const google::protobuf::RepeatedPtrField<std::string> none;
      std::function<bool(const Job&)> selected;
      if (!request->selector().empty()) {
        selected = [&](const Job& job) {
          const bool whole = MayReadJob(*caller, {job.owner(), options_.private_jobs});
          return selector.Selects(whole ? job.labels() : none);
        };
      }
      absl::StatusOr<core::Core::JobPage> page =
          core.ListJobs(request->all(), request->page(), limit, kListBytes, now, selected);
      if (!page.ok()) return reactor->Finish(ToGrpc(page.status()));
      reply->set_next_page(page->next);
      for (Job& job : page->jobs) {
        const JobId id(job.id());
        JobSummary& summary = *reply->add_jobs();
        const bool whole = MayReadJob(*caller, {job.owner(), options_.private_jobs});
        if (whole) *summary.mutable_last_metrics() = ledger.LastMetrics(id);
        if (core.IsCurrent(id, job.generation())) {
          std::set<std::string> nodes;
          const std::vector<Generation> generations = core.ListGenerations(id);
          for (const RankPlacement& rank : generations.front().ranks()) nodes.insert(rank.node());
          summary.mutable_nodes()->Assign(nodes.begin(), nodes.end());
        }
        *summary.mutable_job() = whole ? std::move(job) : WhatAllSee(job);
      }
      reactor->Finish(grpc::Status::OK);
    });
  });
  return reactor;
}

template <typename Reply, typename EventFor>
grpc::ServerUnaryReactor* JobsService::Change(grpc::CallbackServerContext* context, std::string_view method,
                                              const std::string& job, Reply* reply, core::Core::Among among,
                                              EventFor event_for, const std::vector<std::string>& details) {
  absl::StatusOr<AuditedCall> admitted = AdmitChange(*gate_, *context, method, "job", job, loop_);
  if (!admitted.ok()) return EndWith(admitted.status(), *context);
  for (const std::string& detail : details) admitted->entry.add_details(CleanText(detail, kDetailBytes));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, &job, call = *std::move(admitted), event_for = std::move(event_for)](Turn& turn) {
    const absl::StatusOr<std::vector<JobId>> ids = turn.core().FindReplicas(job, among);
    absl::Status status = ids.status();
    if (status.ok()) status = Authorize(call.caller, method, {turn.core().Stored(ids->front())->owner()});
    if (!status.ok()) {
      turn.Audit(ids.ok() ? call.About("job", ids->front().value()) : call.entry, status, /*changed=*/false);
    }
    // Of the replicas of a run, those that can be changed.
    std::vector<JobId> changed;
    for (size_t i = 0; status.ok() && i < ids->size(); ++i) {
      const core::Outcome& outcome = turn.Handle(event_for((*ids)[i], call.caller.name));
      turn.Audit(call.About("job", (*ids)[i].value()), outcome.status, Turn::Changes(outcome));
      if (outcome.status.ok()) changed.push_back((*ids)[i]);
      if (i + 1 == ids->size() && changed.empty()) status = outcome.status;
    }
    if constexpr (std::is_same_v<Reply, DeleteReply>) {
      if (absl::IsNotFound(status)) status = absl::OkStatus();  // it may be a retry
      turn.AfterCommit([=] { reactor->Finish(ToGrpc(status)); });
    } else {
      turn.AfterCommit([=, &core = turn.core()] {
        for (const JobId& id : changed) {
          const absl::StatusOr<Job> found = core.GetJob(id);
          if (found.ok()) *(id == changed.front() ? reply->mutable_job() : reply->add_others()) = *found;
        }
        reactor->Finish(ToGrpc(status));
      });
    }
  });
  return reactor;
}

grpc::ServerUnaryReactor* JobsService::Cancel(grpc::CallbackServerContext* context, const CancelRequest* request,
                                              CancelReply* reply) {
  return Change(context, "/muster.v1.Jobs/Cancel", request->job(), reply, core::Core::Among::kLive,
                [](const JobId& job, const std::string&) { return core::CancelJob{job}; });
}

grpc::ServerUnaryReactor* JobsService::Pause(grpc::CallbackServerContext* context, const PauseRequest* request,
                                             PauseReply* reply) {
  return Change(context, "/muster.v1.Jobs/Pause", request->job(), reply, core::Core::Among::kLive,
                [](const JobId& job, const std::string&) { return core::PauseJob{job}; });
}

grpc::ServerUnaryReactor* JobsService::Resume(grpc::CallbackServerContext* context, const ResumeRequest* request,
                                              ResumeReply* reply) {
  return Change(context, "/muster.v1.Jobs/Resume", request->job(), reply, core::Core::Among::kLive,
                [](const JobId& job, const std::string&) { return core::ResumeJob{job}; });
}

grpc::ServerUnaryReactor* JobsService::Delete(grpc::CallbackServerContext* context, const DeleteRequest* request,
                                              DeleteReply* reply) {
  return Change(context, "/muster.v1.Jobs/Delete", request->job(), reply, core::Core::Among::kEnded,
                [](const JobId& job, const std::string&) { return core::DeleteJob{job}; });
}

grpc::ServerUnaryReactor* JobsService::Label(grpc::CallbackServerContext* context, const LabelRequest* request,
                                             LabelReply* reply) {
  std::vector<std::string> details;
  for (const std::string& label : request->set()) details.push_back(absl::StrCat("set ", label));
  for (const std::string& key : request->remove()) details.push_back(absl::StrCat("remove ", key));
  if (details.size() > kMostDetails) {
    // Cut, they would hide what the call changed from the audit log.
    const absl::StatusOr<AuditedCall> call =
        AdmitChange(*gate_, *context, "/muster.v1.Jobs/Label", "job", request->job(), loop_);
    if (!call.ok()) return EndWith(call.status(), *context);
    const absl::Status status =
        absl::InvalidArgumentError(absl::StrCat("at most ", kMostDetails, " labels may be set and removed at once"));
    return EndAudited(call->entry, status, /*changed=*/false, *context, loop_);
  }
  return Change(
      context, "/muster.v1.Jobs/Label", request->job(), reply, core::Core::Among::kAll,
      [request](const JobId& job, const std::string& user) {
        return core::LabelJob{job,
                              {request->set().begin(), request->set().end()},
                              {request->remove().begin(), request->remove().end()},
                              user};
      },
      details);
}

grpc::ServerUnaryReactor* JobsService::Note(grpc::CallbackServerContext* context, const NoteRequest* request,
                                            NoteReply* reply) {
  return Change(context, "/muster.v1.Jobs/Note", request->job(), reply, core::Core::Among::kAll,
                [request](const JobId& job, const std::string& user) {
                  return core::NoteJob{job, request->text(), user};
                });
}

grpc::ServerUnaryReactor* JobsService::Trace(grpc::CallbackServerContext* context, const TraceRequest* request,
                                             TraceReply* reply) {
  absl::StatusOr<AuditedCall> call =
      AdmitChange(*gate_, *context, "/muster.v1.Jobs/Trace", "job", request->job(), loop_);
  if (!call.ok()) return EndWith(call.status(), *context);
  return StartTrace(*std::move(call), request, reply, loop_);
}

grpc::ServerUnaryReactor* JobsService::Checkpoint(grpc::CallbackServerContext* context,
                                                  const CheckpointRequest* request, CheckpointReply* reply) {
  absl::StatusOr<AuditedCall> call =
      AdmitChange(*gate_, *context, "/muster.v1.Jobs/Checkpoint", "job", request->job(), loop_);
  if (!call.ok()) return EndWith(call.status(), *context);
  return StartCheckpoint(*std::move(call), request, reply, loop_);
}

grpc::ServerWriteReactor<WatchItem>* JobsService::Watch(grpc::CallbackServerContext* context,
                                                        const WatchRequest* request) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Jobs/Watch");
  return StartWatchStream(caller, *request, options_.private_jobs, loop_);
}

}  // namespace muster::rpc
