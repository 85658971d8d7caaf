// The issued tokens and the nodes that have joined, and what is decided about them: who is admitted, what is refused
// and why, what is forgotten. Pure: a value, without clock, randomness or disk. Of a token it has only the hash of its
// secret, of a node only the hash of its public key.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/tls/token.h"
#include "coordinator/rpc/authorize.h"
#include "proto/trust.pb.h"

namespace muster::rpc {

class TrustBook {
 public:
  static constexpr size_t kMaxTokens = 10'000;
  static constexpr size_t kMaxNodes = 20'000;

  // FailedPrecondition: another build wrote it.
  static absl::StatusOr<TrustBook> From(const StoredTrust& stored);
  StoredTrust ToStored() const;

  // Each changes nothing when it fails. Errors as in proto/trust_service.proto.

  // ---- Tokens ----
  // `token` is new. Where there are too many, forgets some that have ended.
  absl::StatusOr<TokenInfo> AddToken(const CreateTokenRequest& request, const tls::Token& token,
                                     const std::string& created_by, absl::Time now);
  std::vector<TokenInfo> ListTokens() const;
  absl::StatusOr<TokenInfo> RevokeToken(const std::string& id, absl::Time now);
  // Unauthenticated: unknown, revoked or expired; the message says which, and what to do.
  absl::StatusOr<Principal> FindToken(const tls::Token& token, absl::Time now) const;

  // ---- Nodes, by the hash of the public key in their certificates ----
  // AlreadyExists: the node has joined with another key and is not revoked, or with this key and is revoked.
  absl::Status Join(const std::string& node, const std::string& key_sha256, absl::Time expires, absl::Time now);
  // The calling certificate has `key_sha256`; CheckNode has accepted it.
  absl::Status Renew(const std::string& node, const std::string& key_sha256, const std::string& next_key_sha256,
                     absl::Time expires);
  absl::Status RevokeNode(const std::string& node);
  // Unauthenticated: the node has not joined, was revoked, or has a newer key.
  absl::Status CheckNode(const std::string& node, const std::string& key_sha256) const;

 private:
  // Makes room for a token; false: all are valid.
  bool DropEnded(absl::Time now);

  std::map<std::string, StoredToken> tokens_;  // by id
  std::map<std::string, StoredNode> nodes_;    // by id
};

}  // namespace muster::rpc
