// The coordinator, as the commands see it. gRPC stays inside this component.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/config.h"
#include "proto/jobs.pb.h"
#include "proto/trust.pb.h"

namespace muster::cli {

// One Watch call. Thread-safe only in that Cancel may come from any thread.
class WatchCall {
 public:
  virtual ~WatchCall() = default;
  // Waits for the next item. False: the stream ended; Finish says why.
  virtual bool Read(v1::WatchItem& item) = 0;
  // Call after Read returned false. Ok: the coordinator closed the stream.
  virtual absl::Status Finish() = 0;
  virtual void Cancel() = 0;
};

// Thread-safe. Every call is idempotent, so a call whose connection breaks is retried for a few seconds. A coordinator
// that cannot be reached at all is an error at once.
//
// Errors, besides those of each call (proto/jobs_service.proto): Unavailable: the coordinator cannot be reached, with
// what to do about it. DeadlineExceeded: no answer in time; a request that changes something may still be carried out.
// PermissionDenied: the socket belongs to another user. A status's details are under rpc::kErrorDetails.
class Client {
 public:
  // Fills in which authority to trust for an address beyond this machine. Keeps `connection.authority` if it is set;
  // otherwise fetches from the address the authority that the token pins. FailedPrecondition: an address beyond this
  // machine and neither. PermissionDenied: another coordinator answers. Unavailable: none answers.
  static absl::Status Secure(Connection& connection);

  explicit Client(const Connection& connection);
  ~Client();

  absl::StatusOr<v1::SubmitReply> Submit(const v1::SubmitRequest& request);
  absl::StatusOr<v1::PlanReply> Plan(const v1::PlanRequest& request);
  absl::StatusOr<v1::GetJobReply> GetJob(const std::string& job);
  absl::StatusOr<v1::ListJobsReply> ListJobs(bool all, const std::vector<std::string>& selector = {});
  absl::StatusOr<v1::CancelReply> Cancel(const std::string& job);
  absl::StatusOr<v1::PauseReply> Pause(const std::string& job);
  absl::StatusOr<v1::ResumeReply> Resume(const std::string& job);
  absl::StatusOr<v1::DeleteReply> Delete(const std::string& job);
  absl::StatusOr<v1::LabelReply> Label(const v1::LabelRequest& request);
  absl::StatusOr<v1::NoteReply> Note(const v1::NoteRequest& request);
  // Waits for the ranks' traces: --timeout, or a minute.
  absl::StatusOr<v1::TraceReply> Trace(v1::TraceRequest request);
  // Waits until the checkpoint is published: --timeout, or five minutes.
  absl::StatusOr<v1::CheckpointReply> Checkpoint(const std::string& job);
  absl::StatusOr<v1::ListNodesReply> ListNodes();
  absl::StatusOr<v1::DrainReply> Drain(const std::string& node);
  absl::StatusOr<v1::UndrainReply> Undrain(const std::string& node);
  absl::StatusOr<v1::ListProjectsReply> ListProjects();
  absl::Status SetProject(const v1::Project& project);
  absl::Status DeleteProject(const std::string& name);
  absl::Status SetTemplate(const std::string& name, const std::string& text);
  absl::StatusOr<v1::Template> GetTemplate(const std::string& name);
  absl::StatusOr<v1::ListTemplatesReply> ListTemplates();
  absl::Status DeleteTemplate(const std::string& name);
  absl::StatusOr<v1::ListReservationsReply> ListReservations();
  absl::StatusOr<v1::SetReservationReply> SetReservation(const v1::Reservation& reservation);
  absl::Status DeleteReservation(const std::string& name);
  absl::StatusOr<v1::ListAuditReply> ListAudit(const v1::ListAuditRequest& request);
  absl::Status Forget(const std::string& node);
  absl::StatusOr<v1::VersionReply> Version();
  // A code for the web page. FailedPrecondition: the coordinator serves none.
  absl::StatusOr<v1::SignInReply> SignIn();
  absl::StatusOr<v1::BackupReply> Backup(const std::string& path);
  absl::StatusOr<v1::CreateTokenReply> CreateToken(const v1::CreateTokenRequest& request);
  absl::StatusOr<v1::ListTokensReply> ListTokens();
  absl::StatusOr<v1::RevokeTokenReply> RevokeToken(const std::string& id);
  absl::StatusOr<v1::RevokeNodeReply> RevokeNode(const std::string& node);

  // Has no deadline of its own.
  std::unique_ptr<WatchCall> Watch(const v1::WatchRequest& request);

  const Connection& connection() const { return connection_; }

 private:
  struct Stubs;
  // `shown_by`: of a call that changes something, the command that shows whether it took effect. `longer`: than the
  // usual time-out.
  template <typename Request, typename Reply, typename Stub, typename Method>
  absl::StatusOr<Reply> Call(Stub& stub, Method method, const Request& request, absl::string_view shown_by = "",
                             absl::Duration longer = absl::ZeroDuration());

  const Connection connection_;
  const std::unique_ptr<Stubs> stubs_;
};

// The SpecErrors in a status's details; empty when there are none.
v1::SpecErrors SpecErrorsOf(const absl::Status& status);

}  // namespace muster::cli
