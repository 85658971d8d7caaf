// What a fake coordinator answers to clients (fake_coordinator.h): jobs, and one stream of items whose cursors are
// their indexes. It outlives the FakeCoordinator, so it survives a restart. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/impl/service_type.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/jobs.pb.h"

namespace muster {

class FakeStore {
 public:
  void PutJob(const v1::Job& job);
  v1::Job Job(const std::string& id) const;
  std::vector<v1::Job> Jobs() const;
  // Sets the cursor. An event with a job state changes the job's state.
  void Append(v1::WatchItem item);
  void AppendMetrics(const std::string& job, uint64_t step, double loss);
  void AppendEvent(const std::string& job, const std::string& message, v1::JobState state);
  void AppendLog(const std::string& job, uint32_t rank, const std::string& text);

  // Items after `cursor`; waits briefly if there is none.
  std::vector<v1::WatchItem> After(uint64_t cursor, absl::Duration at_most) const;

  // Jobs, Nodes and Admin on this store.
  std::vector<std::unique_ptr<grpc::Service>> Services();
  // False: streams that follow end, as when a coordinator stops.
  void SetServing(bool serving);
  bool serving() const;

  // Canned answers by method name ("Submit"): for every call, or only for the next one.
  void Fail(const std::string& method, absl::Status status, bool once = false);
  absl::Status TakeFailure(const std::string& method);
  // The calls in order, with their subject: "Cancel a-x7f2".
  void Record(const std::string& call);
  std::vector<std::string> Calls() const;

  // Not synchronized: set before the server starts, read after it stopped.
  std::vector<v1::Node> nodes;
  v1::ListProjectsReply projects;
  v1::ListTemplatesReply templates;  // with their texts
  v1::ListReservationsReply reservations;
  v1::ListAuditReply audit;
  std::function<std::vector<v1::Node>()> list_nodes;  // instead of `nodes`
  size_t jobs_of_a_reply = 0;                         // most of one List, then the calls are recorded whole; 0: any
  // The job that Submit makes, which it then stores; unset: new-0001.
  std::function<absl::StatusOr<v1::Job>(const v1::SubmitRequest&)> submit;
  v1::PlanReply plan;
  v1::JobSpec submitted;
  std::vector<std::string> request_ids;
  absl::Duration delay = absl::ZeroDuration();  // added to every unary call

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, v1::Job> jobs_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::WatchItem> items_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::pair<absl::Status, bool>> failures_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mutex_);
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace muster
