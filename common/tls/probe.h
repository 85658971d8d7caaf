// A TLS handshake by itself, to learn what gRPC does not tell: who answers, and why a connection does not come about.
//
// Blocking, at most `timeout`. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/tls/certificate.h"

namespace muster::tls {

struct ProbeOptions {
  std::string authority;  // PEM; empty: the peer's certificate is not checked
  KeyPair client;         // shown to the peer; may be empty
  absl::Duration timeout = absl::Seconds(5);
};

// The certificates that the peer at `address` (host:port) shows, its own first, once it has accepted ours.
// Unavailable: nobody listens there, no answer in time, or it does not speak TLS. FailedPrecondition: its certificate
// is signed by another authority, is for other names, has expired, or is not valid yet. Unauthenticated: it does not
// take our certificate. Every message says what to do. InvalidArgument: `address`, `authority` or `client`.
absl::StatusOr<std::vector<std::string>> Probe(const std::string& address, const ProbeOptions& options);

// The authority's certificate with that SHA-256, from whoever answers at `address`: what it shows is believed only if
// it is the pinned one, has signed the peer's certificate, and that fits the address and the time.
// FailedPrecondition: another authority answers. Else as Probe.
absl::StatusOr<std::string> FetchAuthority(const std::string& address, const std::string& sha256,
                                           absl::Duration timeout = absl::Seconds(5));

}  // namespace muster::tls
