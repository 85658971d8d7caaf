// What every method begins with: the version, the caller, and whether it may.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/rpc/authorize.h"

namespace muster::rpc {

// Thread-safe.
class Gate {
 public:
  // `local`: who comes over the Unix socket. Without `tokens` nobody else comes in.
  Gate(Principal local, std::optional<Tokens> tokens) : local_(std::move(local)), tokens_(std::move(tokens)) {}

  // FailedPrecondition: a version that does not fit. Unauthenticated, PermissionDenied.
  absl::StatusOr<Principal> Admit(const grpc::ServerContextBase& context, std::string_view method) const;

 private:
  const Principal local_;
  const std::optional<Tokens> tokens_;
};

// A unary call that ends with `status`.
grpc::ServerUnaryReactor* EndWith(const absl::Status& status, grpc::CallbackServerContext& context);

}  // namespace muster::rpc
