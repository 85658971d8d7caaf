#include "cli/client.h"

#include <grpcpp/client_context.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/rpc/rpc.h"
#include "common/tls/probe.h"
#include "common/tls/token.h"
#include "proto/jobs_service.grpc.pb.h"
#include "proto/trust_service.grpc.pb.h"

namespace muster::cli {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(30);
// gRPC's own message; any other is the coordinator's answer.
constexpr char kNoAnswer[] = "Deadline Exceeded";
// How long to retry a coordinator that answered before: it serves within 3 s of a restart.
constexpr absl::Duration kRetryFor = absl::Seconds(8);
constexpr absl::Duration kFirstRetryPause = absl::Milliseconds(200);
constexpr absl::Duration kLongestRetryPause = absl::Seconds(1);

std::string WhatToDo(const Connection& connection) {
  return connection.default_address ? "is it running? start one with: muster local up"
                                    : "is it running, and is the address right? (--address, MUSTER_ADDRESS)";
}

// gRPC gives the same error for every reason; connecting to the socket directly shows which.
absl::Status ProbeSocket(const Connection& connection) {
  absl::string_view path = connection.address;
  if (!absl::ConsumePrefix(&path, "unix:")) return absl::OkStatus();
  absl::ConsumePrefix(&path, "//");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket path ", path, " has ", path.size(), " bytes, more than ", sizeof(address.sun_path) - 1,
                     ": set MUSTER_RUNTIME_DIR or the coordinator's address to a shorter one"));
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return absl::ErrnoToStatus(errno, "cannot make a socket");
  const int result = connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = errno;
  close(probe);
  if (result == 0) return absl::OkStatus();
  if (error == EACCES || error == EPERM) {
    return absl::PermissionDeniedError(absl::StrCat("not allowed to use the coordinator at ", connection.address,
                                                    ": the socket belongs to another user"));
  }
  return absl::UnavailableError(
      absl::StrCat("cannot reach the coordinator at ", connection.address, ": ", WhatToDo(connection)));
}

constexpr absl::Duration kHandshakeTimeout = absl::Seconds(5);

// gRPC reports only that a handshake failed. A handshake of our own finds the reason; OK if it finds none.
absl::Status ProbeHandshake(const Connection& connection) {
  if (absl::StartsWith(connection.address, "unix:")) return absl::OkStatus();
  if (!connection.authority.empty()) {
    return tls::Probe(connection.address, {.authority = connection.authority, .timeout = kHandshakeTimeout}).status();
  }
  if (!tls::SpeaksTls(connection.address, kHandshakeTimeout)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the coordinator at ", connection.address,
                                             " speaks TLS: give --ca with its ca.crt, or a token of `muster ",
                                             "coordinator token create` (--token-file)"));
}

// A coordinator that refuses the token cannot say where this command has it from.
absl::Status NamingToken(const Connection& connection, const absl::Status& status) {
  if (!absl::IsUnauthenticated(status) || connection.token.empty()) return status;
  return absl::Status(status.code(), absl::StrCat(connection.token_from, ": ", status.message()));
}

class GrpcWatchCall final : public WatchCall {
 public:
  GrpcWatchCall(v1::Jobs::Stub& stub, const Connection& connection, const v1::WatchRequest& request)
      : connection_(connection) {
    rpc::AddCallMetadata(connection.token, context_);
    reader_ = stub.Watch(&context_, request);
  }
  bool Read(v1::WatchItem& item) override { return reader_->Read(&item); }
  absl::Status Finish() override { return NamingToken(connection_, rpc::FromGrpc(reader_->Finish())); }
  void Cancel() override { context_.TryCancel(); }

 private:
  const Connection connection_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::WatchItem>> reader_;
};

}  // namespace

struct Client::Stubs {
  explicit Stubs(const Connection& connection)
      : channel(rpc::Dial(connection.address, {connection.authority, {}})),
        jobs(channel),
        nodes(channel),
        admin(channel),
        trust(channel) {}

  std::shared_ptr<grpc::Channel> channel;
  v1::Jobs::Stub jobs;
  v1::Nodes::Stub nodes;
  v1::Admin::Stub admin;
  v1::Trust::Stub trust;
};

absl::Status Client::Secure(Connection& connection) {
  if (absl::StartsWith(connection.address, "unix:")) return absl::OkStatus();
  if (connection.authority.empty() && tls::IsToken(connection.token)) {
    const absl::StatusOr<tls::Token> token = tls::ParseToken(connection.token);
    if (!token.ok()) {
      return absl::Status(token.status().code(), absl::StrCat(connection.token_from, ": ", token.status().message()));
    }
    const absl::Duration timeout =
        connection.timeout > absl::ZeroDuration() ? std::min(connection.timeout, kHandshakeTimeout) : kHandshakeTimeout;
    absl::StatusOr<std::string> authority = tls::FetchAuthority(connection.address, token->authority_sha256, timeout);
    if (absl::IsFailedPrecondition(authority.status())) {
      return absl::PermissionDeniedError(authority.status().message());
    }
    if (!authority.ok()) return authority.status();
    connection.authority = *std::move(authority);
  }
  const absl::Status secure = rpc::CheckSecure(connection.address, {connection.authority, {}});
  if (secure.ok()) return secure;
  const std::string given =
      connection.token.empty() ? "" : absl::StrCat("; ", connection.token_from, " holds no token that names it");
  return absl::Status(secure.code(),
                      absl::StrCat(secure.message(), given, ": give a token of `muster coordinator token create` ",
                                   "(--token-file, MUSTER_TOKEN_FILE), or the coordinator's ca.crt (--ca, MUSTER_CA)"));
}

Client::Client(const Connection& connection) : connection_(connection), stubs_(std::make_unique<Stubs>(connection)) {}

Client::~Client() = default;

template <typename Request, typename Reply, typename Stub, typename Method>
absl::StatusOr<Reply> Client::Call(Stub& stub, Method method, const Request& request, absl::string_view shown_by,
                                   absl::Duration longer) {
  const absl::Time start = absl::Now();
  const absl::Duration timeout =
      longer + (connection_.timeout > absl::ZeroDuration() ? connection_.timeout : kCallTimeout);
  bool reached = false;
  for (absl::Duration pause = kFirstRetryPause;; pause = std::min(pause * 2, kLongestRetryPause)) {
    const absl::Status probe = ProbeSocket(connection_);
    if (!probe.ok() && !(reached && absl::IsUnavailable(probe))) return probe;
    reached = reached || (probe.ok() && absl::StartsWith(connection_.address, "unix:"));
    grpc::ClientContext context;
    rpc::AddCallMetadata(connection_.token, context);
    context.set_deadline(absl::ToChronoTime(start + timeout));
    Reply reply;
    const absl::Status status = rpc::FromGrpc((stub.*method)(&context, request, &reply));
    if (status.ok()) return reply;
    reached = reached || stubs_->channel->GetState(false) == GRPC_CHANNEL_READY;
    if (status == absl::DeadlineExceededError(kNoAnswer)) {
      const std::string within = absl::StrCat(" within ", absl::FormatDuration(timeout));
      if (reached && !shown_by.empty()) {
        return absl::DeadlineExceededError(absl::StrCat("no answer from the coordinator", within,
                                                        "; the request may still take effect: see ", shown_by));
      }
      return absl::DeadlineExceededError(
          absl::StrCat("the coordinator at ", connection_.address, " did not answer", within));
    }
    if (!absl::IsUnavailable(status)) return NamingToken(connection_, status);
    if (!reached || absl::Now() - start + pause > std::min(timeout, kRetryFor)) {
      // The coordinator's own message ("shutting down") is worth more than our guess.
      const bool ours = absl::StrContains(status.message(), "failed to connect") ||
                        absl::StrContains(status.message(), "Socket closed") ||
                        absl::StrContains(status.message(), "Connection reset");
      if (ours) {
        if (const absl::Status why = ProbeHandshake(connection_); absl::IsFailedPrecondition(why)) {
          return absl::PermissionDeniedError(why.message());
        } else if (!why.ok()) {
          return why;
        }
      }
      return absl::UnavailableError(absl::StrCat("cannot reach the coordinator at ", connection_.address, ": ",
                                                 ours ? WhatToDo(connection_) : std::string(status.message())));
    }
    absl::SleepFor(pause);
  }
}

absl::StatusOr<v1::SubmitReply> Client::Submit(const v1::SubmitRequest& request) {
  return Call<v1::SubmitRequest, v1::SubmitReply>(stubs_->jobs, &v1::Jobs::Stub::Submit, request, "muster ps");
}

absl::StatusOr<v1::PlanReply> Client::Plan(const v1::PlanRequest& request) {
  return Call<v1::PlanRequest, v1::PlanReply>(stubs_->jobs, &v1::Jobs::Stub::Plan, request);
}

absl::StatusOr<v1::GetJobReply> Client::GetJob(const std::string& job) {
  v1::GetJobRequest request;
  request.set_job(job);
  return Call<v1::GetJobRequest, v1::GetJobReply>(stubs_->jobs, &v1::Jobs::Stub::Get, request);
}

absl::StatusOr<v1::ListJobsReply> Client::ListJobs(bool all, const std::vector<std::string>& selector) {
  v1::ListJobsRequest request;
  request.mutable_selector()->Assign(selector.begin(), selector.end());
  request.set_all(all);
  v1::ListJobsReply jobs;
  while (true) {
    absl::StatusOr<v1::ListJobsReply> page =
        Call<v1::ListJobsRequest, v1::ListJobsReply>(stubs_->jobs, &v1::Jobs::Stub::List, request);
    if (!page.ok()) return page;
    request.set_page(page->next_page());
    page->clear_next_page();
    jobs.MergeFrom(*page);
    if (request.page().empty()) return jobs;
  }
}

absl::StatusOr<v1::CancelReply> Client::Cancel(const std::string& job) {
  v1::CancelRequest request;
  request.set_job(job);
  return Call<v1::CancelRequest, v1::CancelReply>(stubs_->jobs, &v1::Jobs::Stub::Cancel, request, "muster ps");
}

absl::StatusOr<v1::PauseReply> Client::Pause(const std::string& job) {
  v1::PauseRequest request;
  request.set_job(job);
  return Call<v1::PauseRequest, v1::PauseReply>(stubs_->jobs, &v1::Jobs::Stub::Pause, request, "muster ps");
}

namespace {

// How long the coordinator should wait for the ranks.
absl::Duration WaitOf(absl::Duration asked, absl::Duration usual) {
  return asked > absl::ZeroDuration() ? std::min(asked, absl::Hours(1)) : usual;
}

}  // namespace

absl::StatusOr<v1::CheckpointReply> Client::Checkpoint(const std::string& job) {
  const absl::Duration wait = WaitOf(connection_.timeout, absl::Minutes(5));
  v1::CheckpointRequest request;
  request.set_job(job);
  request.mutable_wait()->set_seconds(absl::ToInt64Seconds(absl::Ceil(wait, absl::Seconds(1))));
  return Call<v1::CheckpointRequest, v1::CheckpointReply>(stubs_->jobs, &v1::Jobs::Stub::Checkpoint, request,
                                                          "muster ps", wait);
}

absl::StatusOr<v1::TraceReply> Client::Trace(v1::TraceRequest request) {
  const absl::Duration wait = WaitOf(connection_.timeout, absl::Minutes(1));
  request.mutable_wait()->set_seconds(absl::ToInt64Seconds(absl::Ceil(wait, absl::Seconds(1))));
  return Call<v1::TraceRequest, v1::TraceReply>(stubs_->jobs, &v1::Jobs::Stub::Trace, request, "", wait);
}

absl::StatusOr<v1::ResumeReply> Client::Resume(const std::string& job) {
  v1::ResumeRequest request;
  request.set_job(job);
  return Call<v1::ResumeRequest, v1::ResumeReply>(stubs_->jobs, &v1::Jobs::Stub::Resume, request, "muster ps");
}

absl::StatusOr<v1::DeleteReply> Client::Delete(const std::string& job) {
  v1::DeleteRequest request;
  request.set_job(job);
  return Call<v1::DeleteRequest, v1::DeleteReply>(stubs_->jobs, &v1::Jobs::Stub::Delete, request, "muster ps -a");
}

absl::StatusOr<v1::LabelReply> Client::Label(const v1::LabelRequest& request) {
  return Call<v1::LabelRequest, v1::LabelReply>(stubs_->jobs, &v1::Jobs::Stub::Label, request, "muster describe");
}

absl::StatusOr<v1::NoteReply> Client::Note(const v1::NoteRequest& request) {
  return Call<v1::NoteRequest, v1::NoteReply>(stubs_->jobs, &v1::Jobs::Stub::Note, request, "muster describe");
}

absl::StatusOr<v1::ListAuditReply> Client::ListAudit(const v1::ListAuditRequest& request) {
  return Call<v1::ListAuditRequest, v1::ListAuditReply>(stubs_->admin, &v1::Admin::Stub::ListAudit, request);
}

absl::StatusOr<v1::ListNodesReply> Client::ListNodes() {
  return Call<v1::ListNodesRequest, v1::ListNodesReply>(stubs_->nodes, &v1::Nodes::Stub::List, {});
}

absl::StatusOr<v1::DrainReply> Client::Drain(const std::string& node) {
  v1::DrainRequest request;
  request.set_node(node);
  return Call<v1::DrainRequest, v1::DrainReply>(stubs_->nodes, &v1::Nodes::Stub::Drain, request, "muster nodes");
}

absl::Status Client::Forget(const std::string& node) {
  v1::ForgetRequest request;
  request.set_node(node);
  return Call<v1::ForgetRequest, v1::ForgetReply>(stubs_->nodes, &v1::Nodes::Stub::Forget, request, "muster nodes")
      .status();
}

absl::StatusOr<v1::UndrainReply> Client::Undrain(const std::string& node) {
  v1::UndrainRequest request;
  request.set_node(node);
  return Call<v1::UndrainRequest, v1::UndrainReply>(stubs_->nodes, &v1::Nodes::Stub::Undrain, request, "muster nodes");
}

absl::StatusOr<v1::ListProjectsReply> Client::ListProjects() {
  return Call<v1::ListProjectsRequest, v1::ListProjectsReply>(stubs_->admin, &v1::Admin::Stub::ListProjects, {});
}

absl::Status Client::SetProject(const v1::Project& project) {
  v1::SetProjectRequest request;
  *request.mutable_project() = project;
  return Call<v1::SetProjectRequest, v1::SetProjectReply>(stubs_->admin, &v1::Admin::Stub::SetProject, request,
                                                          "muster quota")
      .status();
}

absl::Status Client::DeleteProject(const std::string& name) {
  v1::DeleteProjectRequest request;
  request.set_name(name);
  return Call<v1::DeleteProjectRequest, v1::DeleteProjectReply>(stubs_->admin, &v1::Admin::Stub::DeleteProject, request,
                                                                "muster quota")
      .status();
}

absl::Status Client::SetTemplate(const std::string& name, const std::string& text) {
  v1::SetTemplateRequest request;
  request.set_name(name);
  request.set_text(text);
  return Call<v1::SetTemplateRequest, v1::SetTemplateReply>(stubs_->jobs, &v1::Jobs::Stub::SetTemplate, request,
                                                            "muster templates")
      .status();
}

absl::StatusOr<v1::Template> Client::GetTemplate(const std::string& name) {
  v1::GetTemplateRequest request;
  request.set_name(name);
  absl::StatusOr<v1::GetTemplateReply> reply =
      Call<v1::GetTemplateRequest, v1::GetTemplateReply>(stubs_->jobs, &v1::Jobs::Stub::GetTemplate, request);
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_template_());
}

absl::StatusOr<v1::ListTemplatesReply> Client::ListTemplates() {
  return Call<v1::ListTemplatesRequest, v1::ListTemplatesReply>(stubs_->jobs, &v1::Jobs::Stub::ListTemplates, {});
}

absl::Status Client::DeleteTemplate(const std::string& name) {
  v1::DeleteTemplateRequest request;
  request.set_name(name);
  return Call<v1::DeleteTemplateRequest, v1::DeleteTemplateReply>(stubs_->jobs, &v1::Jobs::Stub::DeleteTemplate,
                                                                  request, "muster templates")
      .status();
}

absl::StatusOr<v1::ListReservationsReply> Client::ListReservations() {
  return Call<v1::ListReservationsRequest, v1::ListReservationsReply>(stubs_->admin, &v1::Admin::Stub::ListReservations,
                                                                      {});
}

absl::StatusOr<v1::SetReservationReply> Client::SetReservation(const v1::Reservation& reservation) {
  v1::SetReservationRequest request;
  *request.mutable_reservation() = reservation;
  return Call<v1::SetReservationRequest, v1::SetReservationReply>(stubs_->admin, &v1::Admin::Stub::SetReservation,
                                                                  request, "muster reservations");
}

absl::Status Client::DeleteReservation(const std::string& name) {
  v1::DeleteReservationRequest request;
  request.set_name(name);
  return Call<v1::DeleteReservationRequest, v1::DeleteReservationReply>(
             stubs_->admin, &v1::Admin::Stub::DeleteReservation, request, "muster reservations")
      .status();
}

absl::StatusOr<v1::SignInReply> Client::SignIn() {
  return Call<v1::SignInRequest, v1::SignInReply>(stubs_->admin, &v1::Admin::Stub::SignIn, {});
}

absl::StatusOr<v1::VersionReply> Client::Version() {
  return Call<v1::VersionRequest, v1::VersionReply>(stubs_->admin, &v1::Admin::Stub::Version, {});
}

absl::StatusOr<v1::BackupReply> Client::Backup(const std::string& path) {
  v1::BackupRequest request;
  request.set_path(path);
  return Call<v1::BackupRequest, v1::BackupReply>(stubs_->admin, &v1::Admin::Stub::Backup, request);
}

absl::StatusOr<v1::CreateTokenReply> Client::CreateToken(const v1::CreateTokenRequest& request) {
  return Call<v1::CreateTokenRequest, v1::CreateTokenReply>(stubs_->trust, &v1::Trust::Stub::CreateToken, request,
                                                            "muster coordinator token ls");
}

absl::StatusOr<v1::ListTokensReply> Client::ListTokens() {
  return Call<v1::ListTokensRequest, v1::ListTokensReply>(stubs_->trust, &v1::Trust::Stub::ListTokens, {});
}

absl::StatusOr<v1::RevokeTokenReply> Client::RevokeToken(const std::string& id) {
  v1::RevokeTokenRequest request;
  request.set_id(id);
  return Call<v1::RevokeTokenRequest, v1::RevokeTokenReply>(stubs_->trust, &v1::Trust::Stub::RevokeToken, request,
                                                            "muster coordinator token ls");
}

absl::StatusOr<v1::RevokeNodeReply> Client::RevokeNode(const std::string& node) {
  v1::RevokeNodeRequest request;
  request.set_node(node);
  return Call<v1::RevokeNodeRequest, v1::RevokeNodeReply>(stubs_->trust, &v1::Trust::Stub::RevokeNode, request,
                                                          "muster nodes");
}

std::unique_ptr<WatchCall> Client::Watch(const v1::WatchRequest& request) {
  return std::make_unique<GrpcWatchCall>(stubs_->jobs, connection_, request);
}

v1::SpecErrors SpecErrorsOf(const absl::Status& status) {
  v1::SpecErrors errors;
  const auto details = status.GetPayload(rpc::kErrorDetails);
  if (!details.has_value() || !errors.ParseFromString(std::string(*details))) errors.Clear();
  return errors;
}

}  // namespace muster::cli
