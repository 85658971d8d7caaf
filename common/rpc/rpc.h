// What every gRPC client and server of ours shares: the one mapping between absl and gRPC status, channel settings, and
// the version that each call carries.
#pragma once

#include <memory>
#include <string>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "common/tls/certificate.h"

namespace muster::rpc {

// Codes are the same numbers on both sides. The payload kErrorDetails of an absl status travels as gRPC's details.
inline constexpr char kErrorDetails[] = "muster.v1.details";
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// How a connection is protected: nothing at all, or TLS (1.2 or 1.3) with a peer whose certificate `authority` signed
// for the address's host.
struct Security {
  std::string authority;  // PEM; empty: plain text
  tls::KeyPair own;       // a node's certificate; empty: none is shown
};

// `address`: "unix:/path" or "host:port". Back-off 0.5 s to 2 s, connect time-out 10 s (a herd of 5,000 workers
// livelocked with 0.5 s). Each channel has connections of its own. While a call is open, keepalive pings notice a peer
// whose machine has vanished within 30 s.
std::shared_ptr<grpc::Channel> Dial(const std::string& address, const Security& security = {});

// OK: a Unix socket, a loopback address, or `security` has an authority. FailedPrecondition: other machines would read
// what is said, tokens included; the message says what to give.
absl::Status CheckSecure(const std::string& address, const Security& security);

// Server side: lets clients of Dial send their keepalive pings (by default a server takes one in five minutes and then
// closes the connection), and sends its own, so that a peer whose machine has vanished is noticed.
void AllowKeepalive(grpc::ServerBuilder& builder);

// Keeps gRPC's threads for the life of the process; Dial and AllowKeepalive call it. Without it the end of the last
// channel or server joins them, which took 10 s once in a while (an executor thread that polls; gRPC 1.51).
void KeepLibrary();

// Client side: names our version, and the token if there is one.
void AddCallMetadata(const std::string& token, grpc::ClientContext& context);

// Server side. OK when the client names no version (a tool with reflection). FailedPrecondition names both versions.
absl::Status CheckVersion(const grpc::ServerContextBase& context);
absl::Status CheckVersion(unsigned protocol, const std::string& version);

// The bearer token of the call, or empty.
std::string TokenOf(const grpc::ServerContextBase& context);

}  // namespace muster::rpc
