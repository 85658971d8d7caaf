// The TrustBook of a coordinator, on disk: STATE/trust/records.pb. Every change is durable before its call returns, and
// takes effect only then. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "coordinator/rpc/trust_book.h"

namespace muster::rpc {

class TrustRecords {
 public:
  // DataLoss: `path` is damaged. PermissionDenied: other users may read it.
  static absl::StatusOr<std::unique_ptr<TrustRecords>> Open(const std::string& path);

  // As those of TrustBook.
  absl::StatusOr<CreateTokenReply> CreateToken(const CreateTokenRequest& request, const std::string& authority_sha256,
                                               const std::string& created_by, absl::Time now);
  std::vector<TokenInfo> ListTokens() const;
  absl::StatusOr<TokenInfo> RevokeToken(const std::string& id, absl::Time now);
  absl::StatusOr<Principal> FindToken(const tls::Token& token, absl::Time now) const;
  absl::Status Join(const std::string& node, const std::string& key_sha256, absl::Time expires, absl::Time now);
  absl::Status Renew(const std::string& node, const std::string& key_sha256, const std::string& next_key_sha256,
                     absl::Time expires);
  absl::Status RevokeNode(const std::string& node);
  absl::Status CheckNode(const std::string& node, const std::string& key_sha256) const;

 private:
  TrustRecords(std::string path, TrustBook book) : path_(std::move(path)), book_(std::move(book)) {}

  // Changes a copy, stores it, and takes it. Returns what `change` returns, or why it could not be stored.
  template <typename Change>
  auto Commit(const Change& change) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string path_;
  mutable Mutex mutex_;
  TrustBook book_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace muster::rpc
