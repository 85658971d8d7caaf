#include "coordinator/rpc/admin.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "common/rpc/rpc.h"
#include "common/version.h"
#include "coordinator/rpc/audited_call.h"
#include "coordinator/rpc/free_space.h"

namespace muster::rpc {

using server::Turn;

namespace {

constexpr uint32_t kDefaultEntries = 1000;
constexpr size_t kReadAtOnce = 100, kMostRead = 5000;  // the loop has others to serve
constexpr size_t kMostReadBytes = size_t{16} << 20;
constexpr size_t kFieldBytes = 5;                // of an entry in a reply: its tag and length
constexpr size_t kReplyBytes = size_t{3} << 20;  // a message may have 4 MiB
// Entries are in the order of their numbers; their times may step back with the wall clock, by no more than this.
constexpr absl::Duration kMostBack = absl::Hours(1);

// "Cancel", "Jobs/Cancel" and "Jobs" all fit "Jobs/Cancel".
bool IsMethod(const std::string& method, const std::string& wanted) {
  return wanted.empty() || method == wanted || absl::StartsWith(method, wanted + "/") ||
         absl::EndsWith(method, "/" + wanted);
}

absl::Status ReadAudit(server::Ledger& ledger, const ListAuditRequest& request, uint64_t before,
                       ListAuditReply& reply) {
  const uint32_t limit = std::min(request.limit() == 0 ? kDefaultEntries : request.limit(), kDefaultEntries);
  const absl::Time since = request.has_since() ? FromProto(request.since()) : absl::InfinitePast();
  size_t read_bytes = 0, reply_bytes = 0;
  for (size_t read = 0; read < kMostRead && read_bytes < kMostReadBytes;) {
    absl::StatusOr<std::vector<AuditEntry>> entries = ledger.ReadAudit(before, kReadAtOnce);
    if (!entries.ok()) return entries.status();
    if (entries->empty()) return absl::OkStatus();
    for (AuditEntry& entry : *entries) {
      const uint64_t next = std::exchange(before, entry.number());
      const size_t bytes = entry.ByteSizeLong();
      ++read;
      read_bytes += bytes;
      if (FromProto(entry.time()) < since - kMostBack) return absl::OkStatus();
      if (!request.user().empty() && entry.user() != request.user()) continue;
      if (!IsMethod(entry.method(), request.method()) || !absl::StartsWith(entry.object(), request.object())) continue;
      if (FromProto(entry.time()) < since) continue;
      if (reply.entries_size() > 0 && reply_bytes + bytes > kReplyBytes) {
        reply.set_next_page(absl::StrCat(next));
        return absl::OkStatus();
      }
      reply_bytes += bytes + kFieldBytes;
      *reply.add_entries() = std::move(entry);
      if (reply.entries_size() < static_cast<int>(limit)) continue;
      reply.set_next_page(absl::StrCat(before));
      return absl::OkStatus();
    }
  }
  reply.set_next_page(absl::StrCat(before));
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::Version(grpc::CallbackServerContext* context, const VersionRequest*,
                                                VersionReply* reply) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Admin/Version");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  reply->set_version(kVersion);
  reply->set_protocol(kProtocol);
  reply->set_oldest_protocol(kOldestProtocol);
  reply->set_state_directory(state_dir_);
  reply->set_no_new_jobs(std::string(CheckFreeSpace(state_dir_, min_free_bytes_).message()));
  return EndWith(absl::OkStatus(), *context);
}

grpc::ServerUnaryReactor* AdminService::Backup(grpc::CallbackServerContext* context, const BackupRequest* request,
                                               BackupReply* reply) {
  const absl::StatusOr<AuditedCall> call =
      AdmitChange(*gate_, *context, "/muster.v1.Admin/Backup", "file", request->path(), loop_);
  if (!call.ok()) return EndWith(call.status(), *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, this, entry = call->entry](Turn& turn) {
    turn.AfterCommit([=, this, &ledger = turn.ledger()] {
      const absl::StatusOr<uint64_t> bytes = ledger.Backup(request->path());
      if (bytes.ok()) reply->set_bytes(*bytes);
      loop_->Post([entry, reactor, status = bytes.status()](Turn& later) {
        later.Audit(entry, status, status.ok());
        later.AfterCommit([=] { reactor->Finish(ToGrpc(status)); });
      });
    });
  });
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::ListProjects(grpc::CallbackServerContext* context, const ListProjectsRequest*,
                                                     ListProjectsReply* reply) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Admin/ListProjects");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const bool all = caller->role == Role::kAdmin || caller->role == Role::kLocal;
  loop_->Post([=, name = caller->name](Turn& turn) {
    turn.AfterCommit([=, &core = turn.core()] {
      for (Project& project : core.ListProjects()) {
        Project& shown = *reply->add_projects();
        shown = std::move(project);
        if (all) continue;
        google::protobuf::RepeatedPtrField<UserUsage> own;
        for (const UserUsage& usage : shown.usage()) {
          if (usage.user() == name) *own.Add() = usage;
        }
        shown.mutable_usage()->Swap(&own);
      }
      reactor->Finish(grpc::Status::OK);
    });
  });
  return reactor;
}

template <typename Event>
grpc::ServerUnaryReactor* AdminService::Change(grpc::CallbackServerContext* context, std::string_view method,
                                               std::string_view kind, const std::string& name, Event event,
                                               std::function<void(const core::Core& core)> answer) {
  const absl::StatusOr<AuditedCall> call = AdmitChange(*gate_, *context, method, kind, name, loop_);
  if (!call.ok()) return EndWith(call.status(), *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([reactor, event = std::move(event), answer = std::move(answer), entry = call->entry](Turn& turn) {
    const core::Outcome& outcome = turn.Handle(event);
    const absl::Status status = outcome.status;
    turn.Audit(entry, status, Turn::Changes(outcome));
    turn.AfterCommit([=, &core = turn.core()] {
      if (status.ok() && answer != nullptr) answer(core);
      reactor->Finish(ToGrpc(status));
    });
  });
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::SetProject(grpc::CallbackServerContext* context,
                                                   const SetProjectRequest* request, SetProjectReply*) {
  return Change(context, "/muster.v1.Admin/SetProject", "project", request->project().name(),
                core::SetProject{request->project()});
}

grpc::ServerUnaryReactor* AdminService::DeleteProject(grpc::CallbackServerContext* context,
                                                      const DeleteProjectRequest* request, DeleteProjectReply*) {
  return Change(context, "/muster.v1.Admin/DeleteProject", "project", request->name(),
                core::DeleteProject{request->name()});
}

grpc::ServerUnaryReactor* AdminService::SetReservation(grpc::CallbackServerContext* context,
                                                       const SetReservationRequest* request,
                                                       SetReservationReply* reply) {
  const std::string& name = request->reservation().name();
  return Change(context, "/muster.v1.Admin/SetReservation", "reservation", name,
                core::SetReservation{request->reservation()}, [name, reply](const core::Core& core) {
                  for (Reservation& reservation : core.ListReservations()) {
                    if (reservation.name() == name) *reply->mutable_reservation() = std::move(reservation);
                  }
                });
}

grpc::ServerUnaryReactor* AdminService::DeleteReservation(grpc::CallbackServerContext* context,
                                                          const DeleteReservationRequest* request,
                                                          DeleteReservationReply*) {
  return Change(context, "/muster.v1.Admin/DeleteReservation", "reservation", request->name(),
                core::DeleteReservation{request->name()});
}

grpc::ServerUnaryReactor* AdminService::ListReservations(grpc::CallbackServerContext* context,
                                                         const ListReservationsRequest*, ListReservationsReply* reply) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Admin/ListReservations");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=](Turn& turn) {
    turn.AfterCommit([=, &core = turn.core()] {
      for (Reservation& reservation : core.ListReservations()) *reply->add_reservations() = std::move(reservation);
      reactor->Finish(grpc::Status::OK);
    });
  });
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::ListAudit(grpc::CallbackServerContext* context, const ListAuditRequest* request,
                                                  ListAuditReply* reply) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Admin/ListAudit");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  uint64_t before = 0;
  if (!request->page().empty() && (!absl::SimpleAtoi(request->page(), &before) || before == 0)) {
    return EndWith(absl::InvalidArgumentError("page: it is not from an earlier reply"), *context);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=](Turn& turn) {
    turn.AfterCommit(
        [=, &ledger = turn.ledger()] { reactor->Finish(ToGrpc(ReadAudit(ledger, *request, before, *reply))); });
  });
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::SignIn(grpc::CallbackServerContext* context, const SignInRequest*,
                                               SignInReply* reply) {
  const absl::StatusOr<AuditedCall> call =
      AdmitChange(*gate_, *context, "/muster.v1.Admin/SignIn", "session", "web", loop_);
  if (!call.ok()) return EndWith(call.status(), *context);
  const absl::Status status = MakeCode(*context, call->caller, *reply);
  return EndAudited(call->entry, status, /*changed=*/false, *context, loop_);
}

absl::Status AdminService::MakeCode(const grpc::CallbackServerContext& context, const Principal& caller,
                                    SignInReply& reply) const {
  if (sign_ins_ == nullptr) {
    return absl::FailedPreconditionError(
        "this coordinator serves no web page: start muster-coordinator with "
        "--web-address 127.0.0.1:7080");
  }
  Credential credential{caller.role == Role::kLocal, "", caller.name, RoleName(caller.role)};
  if (!credential.local) credential.token = TokenOf(context);
  const absl::StatusOr<std::string> code = sign_ins_->Offer(credential);
  if (!code.ok()) return code.status();
  reply.set_url(sign_ins_->url());
  reply.set_code(*code);
  reply.set_user(credential.user);
  reply.set_role(credential.role);
  return absl::OkStatus();
}

}  // namespace muster::rpc
