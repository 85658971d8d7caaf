// What every method checks first: the client's version, the caller, and the caller's permission.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "coordinator/rpc/authorize.h"
#include "coordinator/rpc/trust_records.h"

namespace muster::rpc {

// Identifies callers: over the Unix socket `local`; over TCP by a token, from the token file or the records; over TLS
// also by a node certificate. Over TLS workers need a certificate, since a bearer token does not name a node.
//
// Thread-safe.
class Gate {
 public:
  // `records`: null if this coordinator has no authority. It and `clock` outlive the gate. `known` is called with
  // the peer of each call whose caller is known, on gRPC's threads. `local_token`: a secret of this process, by which
  // its web server acts as `local`; empty: none.
  Gate(Principal local, std::optional<Tokens> tokens, const TrustRecords* records, const Clock* clock,
       std::function<void(const std::string& peer)> known, const std::string& local_token = "");

  // FailedPrecondition: the client's version does not match. Unauthenticated, PermissionDenied. `known`: set to the
  // caller where it is known, also where it is refused.
  absl::StatusOr<Principal> Admit(const grpc::ServerContextBase& context, std::string_view method,
                                  Principal* known = nullptr) const;

  // Where the caller is: "unix:", "ipv4:10.0.0.7:52114"; of a call that this process's web server makes for a browser
  // (rpc::kWebPeer) "web 10.0.0.7:52114".
  std::string PeerOf(const grpc::ServerContextBase& context) const;

  // Of a call over TCP whose message has not been read yet: refuses those without a valid token or certificate, so that
  // strangers' messages are neither received nor parsed. Any method; Admit decides about that.
  std::shared_ptr<grpc::AuthMetadataProcessor> BeforeMessages() const;

 private:
  class Doorman;
  absl::StatusOr<Principal> IdentifyOverTls(const std::string& token, const std::string& certificate) const;
  absl::StatusOr<Principal> Identify(const grpc::ServerContextBase& context) const;
  absl::StatusOr<Principal> OwnerOf(const std::string& token, bool encrypted) const;
  absl::StatusOr<Principal> NodeOf(const std::string& certificate) const;

  const Principal local_;
  const std::optional<Tokens> tokens_;
  const TrustRecords* const records_;
  const Clock* const clock_;
  const std::function<void(const std::string& peer)> known_;
  const std::string local_token_sha256_;  // empty: none
};

// A unary call that finishes with `status`.
grpc::ServerUnaryReactor* EndWith(const absl::Status& status, grpc::CallbackServerContext& context);

}  // namespace muster::rpc
