// What a node that has joined holds: STATE/trust/node.pem (0600) with its certificate, the authority's certificate, and
// its key, in one file so that they always fit. STATE/trust/join.key is the key while the first answer is awaited.
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
  tls::Certificate certificate;  // what ours says
  std::string authority_sha256;
};

// NotFound: this node has not joined. InvalidArgument, PermissionDenied: a file that is damaged, of another node, or
// open to others; the message says what to do.
absl::StatusOr<Credentials> LoadCredentials(const std::string& state_dir, const std::string& node);

// Checks and stores what the coordinator gave for `key`. InvalidArgument: it does not fit.
absl::StatusOr<Credentials> KeepCredentials(const std::string& state_dir, const std::string& node,
                                            const std::string& certificate, const std::string& key,
                                            const std::string& authority);

// When to ask for the next certificate: with a third of its life left.
absl::Time RenewalTime(const tls::Validity& validity);

// One attempt to join: believes the coordinator whose authority `token` pins, sends it a request for a key that was
// made here, and keeps what it answers. Blocking, seconds. Unavailable, DeadlineExceeded: the coordinator is away.
// Anything else needs somebody to act, and says who should do what.
absl::StatusOr<Credentials> Join(const std::string& coordinator, const std::string& token, const std::string& state_dir,
                                 const std::string& node);

struct Membership {
  std::string coordinator;  // address
  // Empty: there is none. An error, as of a file that was removed after its use: of no weight to a node that has
  // joined.
  absl::StatusOr<std::string> join_token;
  std::string state_dir;
  std::string node;
};
// What the node holds, or gets by joining: that it does when it has a token and nothing that is good for the token's
// coordinator. While the coordinator is away it tries on; `pause` waits, and says false when the program is to end
// (Cancelled). NotFound: it holds nothing, and there is no token. FailedPrecondition: its certificate has expired, and
// there is no token. Else as Join.
absl::StatusOr<Credentials> ObtainCredentials(const Membership& membership,
                                              const std::function<bool(absl::Duration)>& pause);

// FailedPrecondition: plain text would leave this machine. Logs why a connection would not come about, in words that
// gRPC does not find.
absl::Status CheckConnection(const std::string& coordinator, const rpc::Security& security);

}  // namespace muster::agent
