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

}  // namespace muster::rpc
