// What every method begins with: the version, the caller, and whether it may.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "coordinator/rpc/authorize.h"
#include "coordinator/rpc/trust_records.h"

namespace muster::rpc {

// Whether the call came over TLS.
bool IsEncrypted(const grpc::ServerContextBase& context);

// Who calls: over the Unix socket `local`; over TCP whoever has a token, of the token file or of the records; over TLS
// also a node with a certificate. Over TLS a worker needs one: a bearer token names no node.
//
// Thread-safe.
class Gate {
 public:
  // `records`: null when this coordinator has no authority; it and `clock` outlive the gate.
  Gate(Principal local, std::optional<Tokens> tokens, const TrustRecords* records, const Clock* clock)
      : local_(std::move(local)), tokens_(std::move(tokens)), records_(records), clock_(clock) {}

  // FailedPrecondition: a version that does not fit. Unauthenticated, PermissionDenied.
  absl::StatusOr<Principal> Admit(const grpc::ServerContextBase& context, std::string_view method) const;

 private:
  absl::StatusOr<Principal> Identify(const grpc::ServerContextBase& context) const;
  absl::StatusOr<Principal> OwnerOf(const std::string& token, bool encrypted) const;
  absl::StatusOr<Principal> NodeOf(const std::string& certificate) const;

  const Principal local_;
  const std::optional<Tokens> tokens_;
  const TrustRecords* const records_;
  const Clock* const clock_;
};

// A unary call that ends with `status`.
grpc::ServerUnaryReactor* EndWith(const absl::Status& status, grpc::CallbackServerContext& context);

}  // namespace muster::rpc
