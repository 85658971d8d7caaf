#include "coordinator/rpc/trust.h"

#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/log/log.h"
#include "common/rpc/rpc.h"
#include "common/tls/token.h"
#include "common/utf8.h"

namespace muster::rpc {
namespace {

using server::Turn;

// A certificate ends by the coordinator's clock.
constexpr absl::Duration kMostApart = absl::Hours(1);

absl::Status CheckNodeId(const std::string& node) {
  const bool plain = std::all_of(node.begin(), node.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
  if (plain && !node.empty() && node.size() <= tls::kMaxNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a node that joins has an id of 1 to ", tls::kMaxNameBytes, " letters, digits, . _ or -"));
}

// A whole token, or its end, in place of an id: neither messages nor the audit log may repeat it.
bool MayHoldSecret(const std::string& id) { return tls::IsToken(id) || id.size() >= tls::kTokenSecretSize; }

// "admin"
std::string RoleText(TokenRole role) {
  return absl::AsciiStrToLower(absl::StripPrefix(TokenRole_Name(role), "TOKEN_ROLE_"));
}

}  // namespace

absl::Status TrustService::CheckAuthority() const {
  if (authority_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this coordinator has no authority: stop it, run `muster coordinator init --state-dir ITS_STATE_DIR`, and start "
      "it again");
}

absl::StatusOr<Principal> TrustService::Admit(const grpc::CallbackServerContext& context,
                                              std::string_view method) const {
  absl::StatusOr<Principal> caller = gate_->Admit(context, method);
  if (!caller.ok()) return caller;
  if (absl::Status status = CheckAuthority(); !status.ok()) return status;
  return caller;
}

absl::StatusOr<AuditedCall> TrustService::AdmitChange(const grpc::CallbackServerContext& context,
                                                      std::string_view method, std::string_view kind,
                                                      std::string_view name) const {
  absl::StatusOr<AuditedCall> call = rpc::AdmitChange(*gate_, context, method, kind, name, loop_);
  if (!call.ok()) return call;
  if (absl::Status status = CheckAuthority(); !status.ok()) return status;
  return call;
}

tls::Validity TrustService::NextValidity() const {
  return tls::ValidUnder(authority_->trust.authority_facts, authority_->node_certificate_life, clock_->Read().wall);
}

absl::Status TrustService::CheckClocks(const grpc::CallbackServerContext& context) const {
  const std::optional<absl::Time> theirs = TimeOf(context);
  if (!theirs.has_value()) return absl::OkStatus();
  const absl::Time ours = clock_->Read().wall;
  if (absl::AbsDuration(*theirs - ours) <= kMostApart) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the node's clock is ", Difference(*theirs, ours),
      " the coordinator's, so a certificate that is made now would be wrong for one of them: check NTP on both"));
}

absl::Status TrustService::DoJoin(const JoinRequest& request, JoinReply& reply) const {
  if (absl::Status status = CheckNodeId(request.node()); !status.ok()) return status;
  const absl::StatusOr<std::string> key = tls::KeyOfRequest(request.certificate_request());
  if (!key.ok()) return key.status();
  const tls::Validity validity = NextValidity();
  absl::Status joined = authority_->records->Join(request.node(), *key, validity.end, clock_->Read().wall);
  if (!joined.ok()) return joined;
  const absl::StatusOr<std::string> certificate = tls::Sign(request.certificate_request(), authority_->trust.authority,
                                                            {tls::Use::kNode, request.node(), {}, validity});
  if (!certificate.ok()) return certificate.status();
  reply.set_certificate(*certificate);
  return absl::OkStatus();
}

absl::Status TrustService::DoRenew(const Principal& caller, const RenewRequest& request, RenewReply& reply) const {
  if (caller.node.empty()) return absl::FailedPreconditionError("only a node's certificate can be renewed");
  const absl::StatusOr<std::string> key = tls::KeyOfRequest(request.certificate_request());
  if (!key.ok()) return key.status();
  const tls::Validity validity = NextValidity();
  absl::Status renewed = authority_->records->Renew(caller.node, caller.key_sha256, *key, validity.end);
  if (!renewed.ok()) return renewed;
  const absl::StatusOr<std::string> certificate = tls::Sign(request.certificate_request(), authority_->trust.authority,
                                                            {tls::Use::kNode, caller.node, {}, validity});
  if (!certificate.ok()) return certificate.status();
  reply.set_certificate(*certificate);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* TrustService::Join(grpc::CallbackServerContext* context, const JoinRequest* request,
                                             JoinReply* reply) {
  const absl::StatusOr<AuditedCall> call = AdmitChange(*context, "/muster.v1.Trust/Join", "node", request->node());
  if (!call.ok()) return EndWith(call.status(), *context);
  absl::Status status = CheckClocks(*context);
  if (status.ok()) status = DoJoin(*request, *reply);
  if (status.ok()) {
    LogInfo("node joined", {{"node", request->node()}, {"peer", context->peer()}, {"token_of", call->caller.name}});
  } else {
    LogWarn("node may not join", {{"node", request->node()}, {"peer", context->peer()}, {"error", status}});
  }
  return EndAudited(call->entry, status, status.ok(), *context, loop_);
}

grpc::ServerUnaryReactor* TrustService::Renew(grpc::CallbackServerContext* context, const RenewRequest* request,
                                              RenewReply* reply) {
  const absl::StatusOr<Principal> caller = Admit(*context, "/muster.v1.Trust/Renew");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  absl::Status status = CheckClocks(*context);
  if (status.ok()) status = DoRenew(*caller, *request, *reply);
  if (status.ok()) LogInfo("node certificate renewed", {{"node", caller->node}});
  return EndWith(status, *context);
}

grpc::ServerUnaryReactor* TrustService::CreateToken(grpc::CallbackServerContext* context,
                                                    const CreateTokenRequest* request, CreateTokenReply* reply) {
  absl::StatusOr<AuditedCall> call = AdmitChange(*context, "/muster.v1.Trust/CreateToken", "token", "");
  if (!call.ok()) return EndWith(call.status(), *context);
  call->entry.add_details(absl::StrCat("role ", RoleText(request->role())));
  if (!request->user().empty()) call->entry.add_details(absl::StrCat("user ", CleanText(request->user(), 64)));
  absl::StatusOr<CreateTokenReply> created = authority_->records->CreateToken(
      *request, authority_->trust.authority_facts.sha256, call->caller.name, clock_->Read().wall);
  const absl::Status status = created.status();
  if (status.ok()) {
    *reply = *std::move(created);
    call->entry.set_object(ObjectOf("token", reply->info().id()));
    LogInfo("token created", {{"token", reply->info().id()},
                              {"role", TokenRole_Name(reply->info().role())},
                              {"user", reply->info().user()},
                              {"by", call->caller.name}});
  }
  return EndAudited(call->entry, status, status.ok(), *context, loop_);
}

grpc::ServerUnaryReactor* TrustService::ListTokens(grpc::CallbackServerContext* context, const ListTokensRequest*,
                                                   ListTokensReply* reply) {
  const absl::StatusOr<Principal> caller = Admit(*context, "/muster.v1.Trust/ListTokens");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  for (TokenInfo& info : authority_->records->ListTokens()) *reply->add_tokens() = std::move(info);
  return EndWith(absl::OkStatus(), *context);
}

grpc::ServerUnaryReactor* TrustService::RevokeToken(grpc::CallbackServerContext* context,
                                                    const RevokeTokenRequest* request, RevokeTokenReply* reply) {
  const absl::StatusOr<AuditedCall> call =
      AdmitChange(*context, "/muster.v1.Trust/RevokeToken", "token", MayHoldSecret(request->id()) ? "" : request->id());
  if (!call.ok()) return EndWith(call.status(), *context);
  if (MayHoldSecret(request->id())) {
    const absl::Status wrong =
        absl::InvalidArgumentError("id: expected a token's id (muster coordinator token ls), not the token");
    return EndAudited(call->entry, wrong, /*changed=*/false, *context, loop_);
  }
  absl::StatusOr<TokenInfo> revoked = authority_->records->RevokeToken(request->id(), clock_->Read().wall);
  const absl::Status status = revoked.status();
  if (status.ok()) {
    *reply->mutable_info() = *std::move(revoked);
    LogInfo("token revoked", {{"token", request->id()}, {"by", call->caller.name}});
    // What its holders have open ends, too.
    loop_->Post([id = request->id()](Turn& turn) {
      turn.AfterCommit([id, &watches = turn.watches()] {
        watches.Revoke(id, absl::UnauthenticatedError(absl::StrCat("the token ", id, " was revoked")));
      });
    });
  }
  return EndAudited(call->entry, status, status.ok(), *context, loop_);
}

grpc::ServerUnaryReactor* TrustService::RevokeNode(grpc::CallbackServerContext* context,
                                                   const RevokeNodeRequest* request, RevokeNodeReply*) {
  const absl::StatusOr<AuditedCall> call =
      AdmitChange(*context, "/muster.v1.Trust/RevokeNode", "node", request->node());
  if (!call.ok()) return EndWith(call.status(), *context);
  const absl::Status status = authority_->records->RevokeNode(request->node());
  if (!status.ok()) return EndAudited(call->entry, status, /*changed=*/false, *context, loop_);
  LogInfo("node revoked", {{"node", request->node()}, {"by", call->caller.name}});
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, entry = call->entry](Turn& turn) {
    turn.Audit(entry, absl::OkStatus(), /*changed=*/true);
    turn.workers().CloseNode(
        turn, NodeId(request->node()),
        absl::UnauthenticatedError("the certificate of this node was revoked: to let it join again, remove the "
                                   "folder trust in its state directory and give it a new token"));
    turn.AfterCommit([=] { reactor->Finish(grpc::Status::OK); });
  });
  return reactor;
}

}  // namespace muster::rpc
