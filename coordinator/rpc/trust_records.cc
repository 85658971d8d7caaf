#include "coordinator/rpc/trust_records.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/file/durable_file.h"
#include "common/file/read_file.h"

namespace muster::rpc {

absl::StatusOr<std::unique_ptr<TrustRecords>> TrustRecords::Open(const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadPrivateFile(path);
  if (absl::IsNotFound(bytes.status())) return std::unique_ptr<TrustRecords>(new TrustRecords(path, TrustBook()));
  if (!bytes.ok()) return bytes.status();
  StoredTrust stored;
  if (!stored.ParseFromString(*bytes)) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: restore a copy, or remove it; then users need new ",
                                            "tokens, and workers join again"));
  }
  absl::StatusOr<TrustBook> book = TrustBook::From(stored);
  if (!book.ok()) return absl::Status(book.status().code(), absl::StrCat(path, ": ", book.status().message()));
  return std::unique_ptr<TrustRecords>(new TrustRecords(path, *std::move(book)));
}

template <typename Change>
auto TrustRecords::Commit(const Change& change) {
  const MutexLock lock(mutex_);
  TrustBook next = book_;
  auto result = change(next);
  if (!result.ok()) return result;
  // Revoking what is revoked needs no disk.
  const std::string bytes = next.ToStored().SerializeAsString();
  if (bytes == book_.ToStored().SerializeAsString()) return result;
  if (absl::Status status = WriteDurably(path_, bytes); !status.ok()) return decltype(result)(status);
  book_ = std::move(next);
  return result;
}

absl::StatusOr<CreateTokenReply> TrustRecords::CreateToken(const CreateTokenRequest& request,
                                                           const std::string& authority_sha256,
                                                           const std::string& created_by, absl::Time now) {
  const absl::StatusOr<tls::Token> token = tls::MakeToken(authority_sha256);
  if (!token.ok()) return token.status();
  absl::StatusOr<TokenInfo> info =
      Commit([&](TrustBook& book) { return book.AddToken(request, *token, created_by, now); });
  if (!info.ok()) return info.status();
  CreateTokenReply reply;
  reply.set_token(tls::ToString(*token));
  *reply.mutable_info() = *std::move(info);
  return reply;
}

std::vector<TokenInfo> TrustRecords::ListTokens() const {
  const MutexLock lock(mutex_);
  return book_.ListTokens();
}

absl::StatusOr<TokenInfo> TrustRecords::RevokeToken(const std::string& id, absl::Time now) {
  return Commit([&](TrustBook& book) { return book.RevokeToken(id, now); });
}

absl::StatusOr<Principal> TrustRecords::FindToken(const tls::Token& token, absl::Time now) const {
  const MutexLock lock(mutex_);
  return book_.FindToken(token, now);
}

absl::Status TrustRecords::Join(const std::string& node, const std::string& key_sha256, absl::Time expires,
                                absl::Time now) {
  return Commit([&](TrustBook& book) { return book.Join(node, key_sha256, expires, now); });
}

absl::Status TrustRecords::Renew(const std::string& node, const std::string& key_sha256,
                                 const std::string& next_key_sha256, absl::Time expires) {
  return Commit([&](TrustBook& book) { return book.Renew(node, key_sha256, next_key_sha256, expires); });
}

absl::Status TrustRecords::RevokeNode(const std::string& node) {
  return Commit([&](TrustBook& book) { return book.RevokeNode(node); });
}

absl::Status TrustRecords::CheckNode(const std::string& node, const std::string& key_sha256) const {
  const MutexLock lock(mutex_);
  return book_.CheckNode(node, key_sha256);
}

}  // namespace muster::rpc
