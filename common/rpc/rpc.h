// Shared by every gRPC client and server of ours: the one mapping between absl and gRPC status, channel settings, and
// the version that each call carries.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/tls/certificate.h"
#include "common/version.h"

namespace muster::rpc {

// Codes are the same numbers on both sides. The payload kErrorDetails of an absl status travels as gRPC's details.
inline constexpr char kErrorDetails[] = "muster.v1.details";
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// How a connection is protected: plain text, or TLS (1.2 or 1.3) with a peer whose certificate for the address's host
// is signed by `authority`.
struct Security {
  std::string authority;  // PEM; empty: plain text
  tls::KeyPair own;       // a node's certificate; empty: none is presented
};

// `address`: "unix:/path" or "host:port". Backoff 0.5 s to 2 s, connect time-out 10 s (with 0.5 s a herd of 5,000
// workers livelocked). Each channel has its own connections. While a call is open, keepalive pings detect a vanished
// peer machine within 30 s.
std::shared_ptr<grpc::Channel> Dial(const std::string& address, const Security& security = {});

// The form of a coordinator's address. InvalidArgument: neither "unix:" with an absolute path nor "host:port".
absl::Status CheckAddress(const std::string& address);

// OK: a Unix socket, a loopback address, or `security` has an authority. FailedPrecondition: other machines could read
// the traffic, tokens included; the message says which flag to give.
absl::Status CheckSecure(const std::string& address, const Security& security);

// Server side: allows the keepalive pings of Dial's clients (by default a server accepts one in five minutes and then
// closes the connection), and sends its own, so that it detects a vanished peer machine.
void AllowKeepalive(grpc::ServerBuilder& builder);

// Before the first call of `stub.async()`: keeps the threads of its callbacks for the life of the process. Otherwise
// the last channel or server ends them, and if a callback holds that last one (its ClientContext does), a thread joins
// itself and goes on with a freed queue (gRPC 1.51, CompletionQueue::ReleaseCallbackAlternativeCQ).
void KeepCallbackThreads();

// Client side: sends our version, and the token if there is one. In the place of bytes that gRPC cannot send it sends
// '?', so the server refuses such a token.
void AddCallMetadata(const std::string& token, grpc::ClientContext& context);

// Server side. OK if the client sends no version (a tool with reflection). FailedPrecondition: this build and the
// caller have no protocol in common; the message names both versions.
absl::Status CheckVersion(const grpc::ServerContextBase& context);
absl::Status CheckVersion(const Protocols& caller, const std::string& version);

// The bearer token of the call, or empty.
std::string TokenOf(const grpc::ServerContextBase& context);

// In calls of the coordinator's web server: a secret of the process, a space, and the address of the browser.
inline constexpr char kWebPeer[] = "muster-web-peer";

// The caller's clock, sent with requests for certificates. None: an older build, which does not send it.
void AddTime(absl::Time now, grpc::ClientContext& context);
std::optional<absl::Time> TimeOf(const grpc::ServerContextBase& context);

}  // namespace muster::rpc
