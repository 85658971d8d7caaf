#include "coordinator/rpc/admin.h"

#include "common/rpc/rpc.h"
#include "common/version.h"
#include "coordinator/rpc/free_space.h"

namespace muster::rpc {

using server::Turn;

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
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Admin/Backup");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=](Turn& turn) {
    turn.AfterCommit([=, &ledger = turn.ledger()] {
      const absl::StatusOr<uint64_t> bytes = ledger.Backup(request->path());
      if (bytes.ok()) reply->set_bytes(*bytes);
      reactor->Finish(ToGrpc(bytes.status()));
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
                                               Event event) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, method);
  if (!caller.ok()) return EndWith(caller.status(), *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([reactor, event = std::move(event)](Turn& turn) {
    const absl::Status status = turn.Handle(event).status;
    turn.AfterCommit([=] { reactor->Finish(ToGrpc(status)); });
  });
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::SetProject(grpc::CallbackServerContext* context,
                                                   const SetProjectRequest* request, SetProjectReply*) {
  return Change(context, "/muster.v1.Admin/SetProject", core::SetProject{request->project()});
}

grpc::ServerUnaryReactor* AdminService::DeleteProject(grpc::CallbackServerContext* context,
                                                      const DeleteProjectRequest* request, DeleteProjectReply*) {
  return Change(context, "/muster.v1.Admin/DeleteProject", core::DeleteProject{request->name()});
}

grpc::ServerUnaryReactor* AdminService::SignIn(grpc::CallbackServerContext* context, const SignInRequest*,
                                               SignInReply* reply) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Admin/SignIn");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  if (sign_ins_ == nullptr) {
    return EndWith(absl::FailedPreconditionError("this coordinator serves no web page: start muster-coordinator with "
                                                 "--web-address 127.0.0.1:7080"),
                   *context);
  }
  Credential credential{caller->role == Role::kLocal, "", caller->name, RoleName(caller->role)};
  if (!credential.local) credential.token = TokenOf(*context);
  const absl::StatusOr<std::string> code = sign_ins_->Offer(credential);
  if (!code.ok()) return EndWith(code.status(), *context);
  reply->set_url(sign_ins_->url());
  reply->set_code(*code);
  reply->set_user(credential.user);
  reply->set_role(credential.role);
  return EndWith(absl::OkStatus(), *context);
}

}  // namespace muster::rpc
