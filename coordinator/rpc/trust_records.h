// The issued tokens and the nodes that have joined: STATE/trust/records.pb. Of a token it stores only the hash of its
// secret, of a node only the hash of its public key.
//
// Every change is durable before its call returns. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/tls/token.h"
#include "coordinator/rpc/authorize.h"
#include "proto/trust.pb.h"

namespace muster::rpc {

class TrustRecords {
 public:
  static constexpr size_t kMaxTokens = 10'000;
  static constexpr size_t kMaxNodes = 20'000;

  // DataLoss: `path` is damaged. PermissionDenied: other users may read it.
  static absl::StatusOr<std::unique_ptr<TrustRecords>> Open(const std::string& path);

  // ---- Tokens. Errors as in proto/trust_service.proto. ----
  absl::StatusOr<CreateTokenReply> CreateToken(const CreateTokenRequest& request, const std::string& authority_sha256,
                                               const std::string& created_by, absl::Time now);
  std::vector<TokenInfo> ListTokens() const;
  absl::StatusOr<TokenInfo> RevokeToken(const std::string& id, absl::Time now);
  // Unauthenticated: unknown, revoked or expired; the message says which, and what to do.
  absl::StatusOr<Principal> FindToken(const tls::Token& token, absl::Time now) const;

  // ---- Nodes, by the hash of the public key in their certificates. ----
  // AlreadyExists: the node has joined with another key and is not revoked, or with this key and is revoked.
  absl::Status Join(const std::string& node, const std::string& key_sha256, absl::Time expires, absl::Time now);
  // The calling certificate has `key_sha256`; CheckNode has accepted it.
  absl::Status Renew(const std::string& node, const std::string& key_sha256, const std::string& next_key_sha256,
                     absl::Time expires);
  absl::Status RevokeNode(const std::string& node);
  // Unauthenticated: the node has not joined, was revoked, or has a newer key.
  absl::Status CheckNode(const std::string& node, const std::string& key_sha256) const;

 private:
  explicit TrustRecords(std::string path) : path_(std::move(path)) {}

  void Load(const StoredTrust& stored);
  void PruneEnded(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes the new records; they take effect once they are on disk.
  absl::Status Store(std::map<std::string, StoredToken> tokens, std::map<std::string, StoredNode> nodes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  mutable Mutex mutex_;
  std::map<std::string, StoredToken> tokens_ ABSL_GUARDED_BY(mutex_);  // by id
  std::map<std::string, StoredNode> nodes_ ABSL_GUARDED_BY(mutex_);    // by id
};

}  // namespace muster::rpc
