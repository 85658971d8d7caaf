#include "coordinator/rpc/call.h"

#include "absl/strings/match.h"
#include "common/rpc/rpc.h"

namespace muster::rpc {

absl::StatusOr<Principal> Gate::Admit(const grpc::ServerContextBase& context, std::string_view method) const {
  Principal caller = local_;
  if (!absl::StartsWith(context.peer(), "unix:")) {
    if (!tokens_.has_value()) return absl::UnauthenticatedError("this coordinator has no token file");
    absl::StatusOr<Principal> found = tokens_->Find(TokenOf(context));
    if (!found.ok()) return found;
    caller = *std::move(found);
  }
  if (absl::Status status = CheckVersion(context); !status.ok()) return status;
  if (absl::Status status = Authorize(caller, method, {}); !status.ok()) return status;
  return caller;
}

grpc::ServerUnaryReactor* EndWith(const absl::Status& status, grpc::CallbackServerContext& context) {
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace muster::rpc
