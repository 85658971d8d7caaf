// A joined node's credentials. STATE/trust/node.pem (0600) holds its certificate, the authority's certificate and its
// key, in one file so that they always match. STATE/trust/join.key holds the key until the first answer arrives.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/rpc.h"
#include "common/tls/certificate.h"

namespace muster::agent {

struct Credentials {
  rpc::Security security;        // the authority, and our own pair
  tls::Certificate certificate;  // the parsed fields of this node's certificate
  std::string authority_sha256;
  absl::Time written;  // to disk, by this machine's clock
};

// NotFound: this node has not joined. InvalidArgument, PermissionDenied: a file that is damaged, of another node, or
// open to others; the message says what to do.
absl::StatusOr<Credentials> LoadCredentials(const std::string& state_dir, const std::string& node);

// Checks and stores what the coordinator gave for `key`. InvalidArgument: it does not fit.
absl::StatusOr<Credentials> KeepCredentials(const std::string& state_dir, const std::string& node,
                                            const std::string& certificate, const std::string& key,
                                            const std::string& authority);

// Of the certificate, since it was written: its validity begins with its authority. If the clock was wrong then, all of
// its validity.
absl::Duration LifeOf(const Credentials& credentials);
// When to ask for the next certificate: with a third of its life left.
absl::Time RenewalTime(const Credentials& credentials);

// Attempts once to join: trusts only the coordinator whose authority `token` pins, sends a certificate request for a
// local key, and stores the answer. Blocks for seconds. Unavailable, DeadlineExceeded: the coordinator is away. Any
// other error needs an operator; the message says what to do.
absl::StatusOr<Credentials> Join(const std::string& coordinator, const std::string& token, const std::string& state_dir,
                                 const std::string& node);

struct Membership {
  std::string coordinator;  // address
  // Empty: no token. An error (such as a file removed after its use) is ignored on a node that has joined, by TLS.
  absl::StatusOr<std::string> join_token;
  std::string state_dir;
  std::string node;
};
// Returns the stored credentials, or joins if there is a token and no valid credentials for the token's coordinator.
// Retries while the coordinator is away; `pause` waits, and returns false when the program must end (Cancelled).
// NotFound: neither credentials nor a token, or a Unix socket, which needs none. FailedPrecondition: the certificate
// has expired and there is no token. Other errors as Join.
absl::StatusOr<Credentials> ObtainCredentials(const Membership& membership,
                                              const std::function<bool(absl::Duration)>& pause);

// FailedPrecondition: plain text would leave this machine. Logs why a TLS connection would fail, more clearly than gRPC
// does.
absl::Status CheckConnection(const std::string& coordinator, const rpc::Security& security);

// `why`, for which a plain connection failed; or, more clearly than gRPC says it, that the coordinator speaks TLS.
absl::Status WhyUnreachable(const std::string& coordinator, const rpc::Security& security, const absl::Status& why);

}  // namespace muster::agent
