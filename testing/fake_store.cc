#include "testing/fake_store.h"

#include <algorithm>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/rpc/rpc.h"
#include "common/version.h"
#include "proto/jobs_service.grpc.pb.h"

namespace muster {

void FakeStore::PutJob(const v1::Job& job) {
  absl::MutexLock lock(&mutex_);
  jobs_[job.id()] = job;
}

v1::Job FakeStore::Job(const std::string& id) const {
  absl::MutexLock lock(&mutex_);
  for (const auto& [key, job] : jobs_) {
    if (absl::StartsWith(key, id)) return job;
  }
  return {};
}

std::vector<v1::Job> FakeStore::Jobs() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::Job> jobs;
  for (const auto& [key, job] : jobs_) jobs.push_back(job);
  return jobs;
}

void FakeStore::Append(v1::WatchItem item) {
  absl::MutexLock lock(&mutex_);
  if (item.event().job_state() != v1::JOB_STATE_UNSPECIFIED) jobs_[item.job()].set_state(item.event().job_state());
  items_.push_back(std::move(item));
  items_.back().set_cursor(absl::StrCat(items_.size()));
}

void FakeStore::AppendMetrics(const std::string& job, uint64_t step, double loss) {
  v1::WatchItem item;
  item.set_job(job);
  item.mutable_metrics()->set_step(step);
  item.mutable_metrics()->set_loss(loss);
  item.mutable_metrics()->set_step_seconds(0.01);
  // Validations are always printed, so tests see every point.
  item.mutable_metrics()->set_validation_loss(loss + 0.5);
  Append(std::move(item));
}

void FakeStore::AppendEvent(const std::string& job, const std::string& message, v1::JobState state) {
  v1::WatchItem item;
  item.set_job(job);
  item.mutable_event()->set_job(job);
  item.mutable_event()->set_kind("job.running");
  item.mutable_event()->set_message(message);
  item.mutable_event()->set_job_state(state);
  Append(std::move(item));
}

void FakeStore::AppendLog(const std::string& job, uint32_t rank, const std::string& text) {
  v1::WatchItem item;
  item.set_job(job);
  item.mutable_log()->set_generation(1);
  item.mutable_log()->set_rank(rank);
  item.mutable_log()->set_text(text);
  Append(std::move(item));
}

std::vector<v1::WatchItem> FakeStore::After(uint64_t cursor, absl::Duration at_most) const {
  absl::MutexLock lock(&mutex_);
  const auto more = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return items_.size() > cursor; };
  mutex_.AwaitWithTimeout(absl::Condition(&more), at_most);
  if (items_.size() <= cursor) return {};
  return {items_.begin() + static_cast<ptrdiff_t>(cursor), items_.end()};
}

void FakeStore::Fail(const std::string& method, absl::Status status, bool once) {
  absl::MutexLock lock(&mutex_);
  failures_[method] = {std::move(status), once};
}

absl::Status FakeStore::TakeFailure(const std::string& method) {
  absl::MutexLock lock(&mutex_);
  const auto found = failures_.find(method);
  if (found == failures_.end()) return absl::OkStatus();
  const absl::Status status = found->second.first;
  if (found->second.second) failures_.erase(found);
  return status;
}

void FakeStore::Record(const std::string& call) {
  absl::MutexLock lock(&mutex_);
  calls_.push_back(call);
}

std::vector<std::string> FakeStore::Calls() const {
  absl::MutexLock lock(&mutex_);
  return calls_;
}

void FakeStore::SetServing(bool serving) {
  absl::MutexLock lock(&mutex_);
  serving_ = serving;
}

bool FakeStore::serving() const {
  absl::MutexLock lock(&mutex_);
  return serving_;
}

namespace {

// Begins a page without jobs that another one follows, as when a selector matches none of the jobs that it looks at.
constexpr char kEmptyPage[] = "~";

class FakeJobs final : public v1::Jobs::Service {
 public:
  explicit FakeJobs(FakeStore& store) : store_(store) {}

  grpc::Status Submit(grpc::ServerContext*, const v1::SubmitRequest* request, v1::SubmitReply* reply) override {
    store_.request_ids.push_back(request->request_id());
    store_.submitted = request->spec();
    if (absl::Status failure = Begin("Submit", ""); !failure.ok()) return rpc::ToGrpc(failure);
    v1::Job job;
    job.set_id("new-0001");
    *job.mutable_spec() = request->spec();
    job.set_state(v1::JOB_STATE_QUEUED);
    if (store_.submit) {
      const absl::StatusOr<v1::Job> made = store_.submit(*request);
      if (!made.ok()) return rpc::ToGrpc(made.status());
      job = *made;
    }
    store_.PutJob(job);
    *reply->mutable_job() = job;
    *reply->mutable_plan() = store_.plan;
    return grpc::Status::OK;
  }
  grpc::Status Plan(grpc::ServerContext*, const v1::PlanRequest* request, v1::PlanReply* reply) override {
    if (absl::Status failure = Begin("Plan", ""); !failure.ok()) return rpc::ToGrpc(failure);
    *reply = store_.plan;
    *reply->mutable_resolved() = request->spec();
    return grpc::Status::OK;
  }
  grpc::Status Get(grpc::ServerContext*, const v1::GetJobRequest* request, v1::GetJobReply* reply) override {
    return ForJob("Get", request->job(), reply->mutable_job());
  }
  grpc::Status List(grpc::ServerContext*, const v1::ListJobsRequest* request, v1::ListJobsReply* reply) override {
    const std::string selector = absl::StrJoin(request->selector(), ",");
    if (absl::Status failure = Begin("List", selector); !failure.ok()) return rpc::ToGrpc(failure);
    const std::vector<v1::Job> jobs = store_.Jobs();
    size_t at = 0, end = jobs.size();
    if (store_.jobs_of_a_reply > 0) {
      store_.Record(absl::StrCat("ListJobs ", request->ShortDebugString()));
      const std::string& page = request->page();
      if (absl::StartsWith(page, kEmptyPage)) {
        reply->set_next_page(page.substr(1));
        return grpc::Status::OK;
      }
      if (!page.empty() && !absl::SimpleAtoi(page, &at)) {
        return rpc::ToGrpc(absl::InvalidArgumentError("no page of ours"));
      }
      end = std::min(at + store_.jobs_of_a_reply, jobs.size());
    }
    for (size_t i = at; i < end; ++i) *reply->add_jobs()->mutable_job() = jobs[i];
    if (end < jobs.size()) reply->set_next_page(absl::StrCat(kEmptyPage, end));
    return grpc::Status::OK;
  }
  grpc::Status Cancel(grpc::ServerContext*, const v1::CancelRequest* request, v1::CancelReply* reply) override {
    return ForJob("Cancel", request->job(), reply->mutable_job());
  }
  grpc::Status Pause(grpc::ServerContext*, const v1::PauseRequest* request, v1::PauseReply* reply) override {
    return ForJob("Pause", request->job(), reply->mutable_job());
  }
  grpc::Status Checkpoint(grpc::ServerContext*, const v1::CheckpointRequest* request,
                          v1::CheckpointReply* reply) override {
    reply->mutable_checkpoint()->set_step(3);
    reply->mutable_checkpoint()->set_directory("step-0000000003-g1");
    v1::Job job;
    return ForJob("Checkpoint", request->job(), &job);
  }
  grpc::Status Resume(grpc::ServerContext*, const v1::ResumeRequest* request, v1::ResumeReply* reply) override {
    return ForJob("Resume", request->job(), reply->mutable_job());
  }
  grpc::Status Label(grpc::ServerContext*, const v1::LabelRequest* request, v1::LabelReply* reply) override {
    store_.Record(
        absl::StrCat("Label ", absl::StrJoin(request->set(), " "), " remove ", absl::StrJoin(request->remove(), " ")));
    return ForJob("Label", request->job(), reply->mutable_job());
  }
  grpc::Status Note(grpc::ServerContext*, const v1::NoteRequest* request, v1::NoteReply* reply) override {
    store_.Record(absl::StrCat("Note text ", request->text()));
    return ForJob("Note", request->job(), reply->mutable_job());
  }
  grpc::Status Delete(grpc::ServerContext*, const v1::DeleteRequest* request, v1::DeleteReply*) override {
    v1::Job job;
    return ForJob("Delete", request->job(), &job);
  }

  grpc::Status SetTemplate(grpc::ServerContext*, const v1::SetTemplateRequest* request,
                           v1::SetTemplateReply*) override {
    store_.Record(absl::StrCat("SetTemplate ", request->name(), " ", request->text()));
    return rpc::ToGrpc(store_.TakeFailure("SetTemplate"));
  }
  grpc::Status GetTemplate(grpc::ServerContext*, const v1::GetTemplateRequest* request,
                           v1::GetTemplateReply* reply) override {
    store_.Record(absl::StrCat("GetTemplate ", request->name()));
    for (const v1::Template& found : store_.templates.templates()) {
      if (found.name() != request->name()) continue;
      *reply->mutable_template_() = found;
      return grpc::Status::OK;
    }
    return rpc::ToGrpc(absl::NotFoundError(absl::StrCat("there is no template ", request->name())));
  }
  grpc::Status ListTemplates(grpc::ServerContext*, const v1::ListTemplatesRequest*,
                             v1::ListTemplatesReply* reply) override {
    *reply = store_.templates;
    return grpc::Status::OK;
  }
  grpc::Status DeleteTemplate(grpc::ServerContext*, const v1::DeleteTemplateRequest* request,
                              v1::DeleteTemplateReply*) override {
    store_.Record(absl::StrCat("DeleteTemplate ", request->name()));
    return grpc::Status::OK;
  }

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::WatchItem>* writer) override {
    store_.Record(absl::StrCat("Watch ", request->job(), " from ", request->cursor()));
    if (absl::Status failure = store_.TakeFailure("Watch"); !failure.ok()) return rpc::ToGrpc(failure);
    uint64_t cursor = 0;
    if (!request->cursor().empty() && !absl::SimpleAtoi(request->cursor(), &cursor)) {
      return rpc::ToGrpc(absl::InvalidArgumentError("no cursor of ours"));
    }
    const bool all = !request->events() && !request->metrics() && !request->logs();
    const auto wanted = [&](const v1::WatchItem& item) {
      if (!request->job().empty() && item.job() != request->job()) return false;
      if (item.has_log()) {
        return (all || request->logs()) && (!request->has_rank() || item.log().rank() == request->rank());
      }
      return all || item.has_gap() || (item.has_event() && request->events()) ||
             (item.has_metrics() && request->metrics());
    };
    if (request->has_tail()) {  // of logs, whole chunks
      const auto items = store_.After(0, absl::ZeroDuration());
      cursor = items.size();
      for (uint64_t left = request->tail(); cursor > 0 && left > 0; --cursor) {
        const v1::WatchItem& item = items[cursor - 1];
        if (!wanted(item)) continue;
        const std::string& text = item.log().text();
        const auto lines = static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n'));
        left -= std::min(left, item.has_log() ? lines : 1);
      }
    }
    if (!request->job().empty()) {
      v1::WatchItem snapshot;
      *snapshot.mutable_snapshot() = store_.Job(request->job());
      writer->Write(snapshot);
    }
    while (store_.serving() && !context->IsCancelled()) {
      const auto items = store_.After(cursor, request->follow() ? absl::Milliseconds(20) : absl::ZeroDuration());
      for (const v1::WatchItem& item : items) {
        ++cursor;
        if (wanted(item)) writer->Write(item);
        if (!request->job().empty() && item.job() != request->job()) continue;
        if (request->follow() && !request->job().empty() && Terminal(item.event().job_state())) return grpc::Status::OK;
      }
      if (!request->follow() && items.empty()) return grpc::Status::OK;
    }
    return rpc::ToGrpc(absl::UnavailableError("shutting down"));
  }

 private:
  static bool Terminal(v1::JobState state) { return state >= v1::JOB_STATE_COMPLETED; }

  absl::Status Begin(const std::string& method, const std::string& about) {
    absl::SleepFor(store_.delay);
    store_.Record(absl::StrCat(method, about.empty() ? "" : " ", about));
    return store_.TakeFailure(method);
  }
  grpc::Status ForJob(const std::string& method, const std::string& id, v1::Job* out) {
    if (absl::Status failure = Begin(method, id); !failure.ok()) return rpc::ToGrpc(failure);
    *out = store_.Job(id);
    return out->id().empty() ? rpc::ToGrpc(absl::NotFoundError(absl::StrCat("no job ", id))) : grpc::Status::OK;
  }

  FakeStore& store_;
};

class FakeNodes final : public v1::Nodes::Service {
 public:
  explicit FakeNodes(FakeStore& store) : store_(store) {}
  grpc::Status List(grpc::ServerContext*, const v1::ListNodesRequest*, v1::ListNodesReply* reply) override {
    for (const v1::Node& node : store_.list_nodes ? store_.list_nodes() : store_.nodes) *reply->add_nodes() = node;
    return grpc::Status::OK;
  }
  grpc::Status Use(grpc::ServerContext*, const v1::NodeUseRequest* request, v1::NodeUseReply* reply) override {
    for (const v1::Node& node : store_.nodes) {
      if (node.id() == request->node() && node.has_use()) *reply->add_points() = node.use();
    }
    return grpc::Status::OK;
  }
  grpc::Status Drain(grpc::ServerContext*, const v1::DrainRequest* request, v1::DrainReply* reply) override {
    return Set(request->node(), true, *reply->mutable_node());
  }
  grpc::Status Undrain(grpc::ServerContext*, const v1::UndrainRequest* request, v1::UndrainReply* reply) override {
    return Set(request->node(), false, *reply->mutable_node());
  }
  grpc::Status Forget(grpc::ServerContext*, const v1::ForgetRequest* request, v1::ForgetReply*) override {
    store_.Record(absl::StrCat("Forget ", request->node()));
    return rpc::ToGrpc(store_.TakeFailure("Forget"));
  }

 private:
  grpc::Status Set(const std::string& id, bool draining, v1::Node& out) {
    for (const v1::Node& node : store_.nodes) {
      if (node.id() != id) continue;
      out = node;
      out.set_draining(draining);
      return grpc::Status::OK;
    }
    return rpc::ToGrpc(absl::NotFoundError(absl::StrCat("no node ", id)));
  }

  FakeStore& store_;
};

class FakeAdmin final : public v1::Admin::Service {
 public:
  explicit FakeAdmin(FakeStore& store) : store_(store) {}
  grpc::Status Version(grpc::ServerContext* context, const v1::VersionRequest*, v1::VersionReply* reply) override {
    if (absl::Status fits = rpc::CheckVersion(*context); !fits.ok()) return rpc::ToGrpc(fits);
    reply->set_version(kVersion);
    reply->set_protocol(kProtocol);
    reply->set_oldest_protocol(kOldestProtocol);
    reply->set_state_directory("/var/lib/muster/coordinator");
    return rpc::ToGrpc(store_.TakeFailure("Version"));
  }
  grpc::Status Backup(grpc::ServerContext*, const v1::BackupRequest* request, v1::BackupReply* reply) override {
    store_.Record(absl::StrCat("Backup ", request->path()));
    reply->set_bytes(4096);
    return grpc::Status::OK;
  }
  // Two entries in a reply, as if more did not fit.
  grpc::Status ListAudit(grpc::ServerContext*, const v1::ListAuditRequest* request,
                         v1::ListAuditReply* reply) override {
    store_.Record(absl::StrCat("ListAudit ", request->ShortDebugString()));
    int at = 0;
    if (!request->page().empty() && !absl::SimpleAtoi(request->page(), &at)) {
      return rpc::ToGrpc(absl::InvalidArgumentError("no page of ours"));
    }
    const int end = at + (request->limit() == 1 ? 1 : 2);
    for (int i = at; i < store_.audit.entries_size() && i < end; ++i) *reply->add_entries() = store_.audit.entries(i);
    if (end < store_.audit.entries_size()) reply->set_next_page(absl::StrCat(end));
    return rpc::ToGrpc(store_.TakeFailure("ListAudit"));
  }
  grpc::Status ListProjects(grpc::ServerContext*, const v1::ListProjectsRequest*,
                            v1::ListProjectsReply* reply) override {
    *reply = store_.projects;
    return grpc::Status::OK;
  }
  grpc::Status SetProject(grpc::ServerContext*, const v1::SetProjectRequest* request, v1::SetProjectReply*) override {
    store_.Record(absl::StrCat("SetProject ", request->project().ShortDebugString()));
    return grpc::Status::OK;
  }
  grpc::Status DeleteProject(grpc::ServerContext*, const v1::DeleteProjectRequest* request,
                             v1::DeleteProjectReply*) override {
    store_.Record(absl::StrCat("DeleteProject ", request->name()));
    return grpc::Status::OK;
  }
  grpc::Status ListReservations(grpc::ServerContext*, const v1::ListReservationsRequest*,
                                v1::ListReservationsReply* reply) override {
    *reply = store_.reservations;
    return grpc::Status::OK;
  }
  grpc::Status SetReservation(grpc::ServerContext*, const v1::SetReservationRequest* request,
                              v1::SetReservationReply* reply) override {
    store_.Record(absl::StrCat("SetReservation ", request->reservation().ShortDebugString()));
    *reply->mutable_reservation() = request->reservation();
    return grpc::Status::OK;
  }
  grpc::Status DeleteReservation(grpc::ServerContext*, const v1::DeleteReservationRequest* request,
                                 v1::DeleteReservationReply*) override {
    store_.Record(absl::StrCat("DeleteReservation ", request->name()));
    return grpc::Status::OK;
  }
  grpc::Status SignIn(grpc::ServerContext*, const v1::SignInRequest*, v1::SignInReply* reply) override {
    store_.Record("SignIn");
    if (absl::Status failure = store_.TakeFailure("SignIn"); !failure.ok()) return rpc::ToGrpc(failure);
    reply->set_url("http://127.0.0.1:7080");
    reply->set_code("abcdefghijkmnpqrstuvwxyz23456789");
    reply->set_user("ann");
    reply->set_role("submitter");
    return grpc::Status::OK;
  }

 private:
  FakeStore& store_;
};

}  // namespace

std::vector<std::unique_ptr<grpc::Service>> FakeStore::Services() {
  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(std::make_unique<FakeJobs>(*this));
  services.push_back(std::make_unique<FakeNodes>(*this));
  services.push_back(std::make_unique<FakeAdmin>(*this));
  return services;
}

}  // namespace muster
