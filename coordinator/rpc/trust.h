// The service muster.v1.Trust. Thread-safe. `authority`, `gate` and `loop` outlive it.
#pragma once

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/tls/trust_folder.h"
#include "coordinator/rpc/audited_call.h"
#include "coordinator/rpc/call.h"
#include "coordinator/rpc/trust_records.h"
#include "coordinator/server/loop.h"
#include "proto/trust_service.grpc.pb.h"

namespace muster::rpc {

// The certificate authority that `muster coordinator init` has set up.
struct Authority {
  tls::Trust trust;
  std::unique_ptr<TrustRecords> records;
  absl::Duration node_certificate_life;
};

class TrustService final : public Trust::CallbackService {
 public:
  // `authority`: null if there is none.
  TrustService(const Authority* authority, const Clock* clock, const Gate* gate, server::Loop* loop)
      : authority_(authority), clock_(clock), gate_(gate), loop_(loop) {}

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context, const JoinRequest* request,
                                 JoinReply* reply) override;
  grpc::ServerUnaryReactor* Renew(grpc::CallbackServerContext* context, const RenewRequest* request,
                                  RenewReply* reply) override;
  grpc::ServerUnaryReactor* CreateToken(grpc::CallbackServerContext* context, const CreateTokenRequest* request,
                                        CreateTokenReply* reply) override;
  grpc::ServerUnaryReactor* ListTokens(grpc::CallbackServerContext* context, const ListTokensRequest* request,
                                       ListTokensReply* reply) override;
  grpc::ServerUnaryReactor* RevokeToken(grpc::CallbackServerContext* context, const RevokeTokenRequest* request,
                                        RevokeTokenReply* reply) override;
  grpc::ServerUnaryReactor* RevokeNode(grpc::CallbackServerContext* context, const RevokeNodeRequest* request,
                                       RevokeNodeReply* reply) override;

 private:
  absl::Status CheckAuthority() const;
  absl::StatusOr<AuditedCall> AdmitChange(const grpc::CallbackServerContext& context, std::string_view method,
                                          std::string_view kind, std::string_view name) const;
  // Identifies the caller, and checks that there is an authority.
  absl::StatusOr<Principal> Admit(const grpc::CallbackServerContext& context, std::string_view method) const;
  // Makes no certificate that would not be valid by the node's clock, or would be for years too long.
  absl::Status CheckClocks(const grpc::CallbackServerContext& context) const;
  absl::Status DoJoin(const JoinRequest& request, JoinReply& reply) const;
  absl::Status DoRenew(const Principal& caller, const RenewRequest& request, RenewReply& reply) const;
  tls::Validity NextValidity() const;  // of a node's certificate

  const Authority* const authority_;
  const Clock* const clock_;
  const Gate* const gate_;
  server::Loop* const loop_;
};

}  // namespace muster::rpc
