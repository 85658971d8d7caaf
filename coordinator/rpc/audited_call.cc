#include "coordinator/rpc/audited_call.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/rpc/rpc.h"
#include "common/tls/token.h"
#include "common/utf8.h"

namespace muster::rpc {
namespace {

using server::Turn;

constexpr size_t kNameBytes = 128;

}  // namespace

std::string ObjectOf(std::string_view kind, std::string_view name) {
  return absl::StrCat(std::string(kind), "/", CleanText({name.data(), name.size()}, kNameBytes));
}

AuditEntry AuditedCall::About(std::string_view kind, std::string_view name) const {
  AuditEntry about = entry;
  about.set_object(ObjectOf(kind, name));
  return about;
}

absl::StatusOr<AuditedCall> AdmitChange(const Gate& gate, const grpc::ServerContextBase& context,
                                        std::string_view method, std::string_view kind, std::string_view name,
                                        server::Loop* loop) {
  AuditedCall call;
  absl::Status status = gate.Admit(context, method, &call.caller).status();
  if (!status.ok() && call.caller.name.empty()) return status;
  const bool pasted = tls::HoldsToken(name);
  if (status.ok() && pasted) {
    status = absl::InvalidArgumentError(
        absl::StrCat("expected a ", std::string(kind),
                     "'s name or id, not a token (to revoke one: muster coordinator token revoke ID)"));
  }
  AuditEntry& entry = call.entry;
  entry.set_user(call.caller.name);
  entry.set_role(RoleName(call.caller.role));
  entry.set_token_id(call.caller.token_id);
  entry.set_peer(CleanText(gate.PeerOf(context), kNameBytes));
  entry.set_method(std::string(absl::StripPrefix(absl::string_view(method.data(), method.size()), "/muster.v1.")));
  entry.set_object(ObjectOf(kind, pasted ? "" : name));
  if (status.ok()) return call;
  loop->Post([entry, status](Turn& turn) { turn.Audit(entry, status, /*changed=*/false); });
  return status;
}

grpc::ServerUnaryReactor* EndAudited(const AuditEntry& entry, const absl::Status& status, bool changed,
                                     grpc::CallbackServerContext& context, server::Loop* loop) {
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  loop->Post([entry, status, changed, reactor](Turn& turn) {
    turn.Audit(entry, status, changed);
    turn.AfterCommit([=] { reactor->Finish(ToGrpc(status)); });
  });
  return reactor;
}

}  // namespace muster::rpc
