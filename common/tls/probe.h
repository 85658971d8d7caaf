// A TLS handshake by itself, to find what gRPC does not report: who answers, and why a connection fails.
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

// The certificates of the peer at `address` (host:port), its own first, once it has accepted ours. Unavailable: no
// server listens there, no answer in time, or it does not speak TLS. FailedPrecondition: its certificate is signed by
// another authority, is for other names, has expired, or is not valid yet. Unauthenticated: it does not accept our
// certificate. Every message says what to do. InvalidArgument: `address`, `authority` or `client`.
absl::StatusOr<std::vector<std::string>> Probe(const std::string& address, const ProbeOptions& options);

// Whether the server at `address` (host:port) speaks TLS, with whatever certificate. False also: none answers in time.
bool SpeaksTls(const std::string& address, absl::Duration timeout = absl::Seconds(5));

// Fetches the authority's certificate with that SHA-256 from the server at `address`. Accepts it only if it is the
// pinned one and has signed the peer's certificate, and that certificate matches the address and the time.
// FailedPrecondition: another authority answers. Otherwise as Probe.
absl::StatusOr<std::string> FetchAuthority(const std::string& address, const std::string& sha256,
                                           absl::Duration timeout = absl::Seconds(5));

}  // namespace muster::tls
