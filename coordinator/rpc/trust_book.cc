#include "coordinator/rpc/trust_book.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "common/sha256.h"

namespace muster::rpc {
namespace {

constexpr uint32_t kFormat = 1;
constexpr absl::Duration kJoinTokenLife = absl::Hours(1);
constexpr size_t kMaxUserBytes = 64;
constexpr size_t kMaxRequestIdBytes = 64;

absl::Time EndOf(const TokenInfo& info) {
  return info.has_expires() ? FromProto(info.expires()) : absl::InfiniteFuture();
}

std::string Minutes(absl::Time time) { return absl::FormatTime("%Y-%m-%d %H:%M", time, absl::UTCTimeZone()) + " UTC"; }

bool IsPlainName(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '@' || c == '-';
  });
}

Role RoleOf(TokenRole role) {
  switch (role) {
    case TOKEN_ROLE_SUBMITTER:
      return Role::kSubmitter;
    case TOKEN_ROLE_ADMIN:
      return Role::kAdmin;
    case TOKEN_ROLE_WORKER:
      return Role::kJoiner;
    default:
      return Role::kViewer;
  }
}

absl::Status CheckRequest(const CreateTokenRequest& request) {
  if (!TokenRole_IsValid(request.role()) || request.role() == TOKEN_ROLE_UNSPECIFIED) {
    return absl::InvalidArgumentError("a token needs a role: worker, viewer, submitter or admin");
  }
  if (request.user().empty() && request.role() != TOKEN_ROLE_WORKER) {
    return absl::InvalidArgumentError("a token for a person needs the user's name, which owns the jobs: --user NAME");
  }
  if (request.user().size() > kMaxUserBytes || !IsPlainName(request.user())) {
    return absl::InvalidArgumentError("a user's name has at most 64 letters, digits, . _ @ or -");
  }
  if (request.request_id().size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError("the request id of a token has at most 64 characters");
  }
  const absl::Duration ttl = absl::Seconds(request.ttl().seconds());
  if (request.has_ttl() && (ttl < absl::Seconds(1) || ttl > absl::Hours(24 * 36'525))) {
    return absl::InvalidArgumentError("a token's ttl is at least a second and at most 100 years");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TrustBook> TrustBook::From(const StoredTrust& stored) {
  if (stored.format() != kFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat("it has format ", stored.format(), ", this build reads ", kFormat, ": install a newer one"));
  }
  TrustBook book;
  for (const StoredToken& token : stored.tokens()) book.tokens_[token.info().id()] = token;
  for (const StoredNode& node : stored.nodes()) book.nodes_[node.id()] = node;
  return book;
}

StoredTrust TrustBook::ToStored() const {
  StoredTrust stored;
  stored.set_format(kFormat);
  for (const auto& [id, token] : tokens_) *stored.add_tokens() = token;
  for (const auto& [id, node] : nodes_) *stored.add_nodes() = node;
  return stored;
}

absl::StatusOr<TokenInfo> TrustBook::AddToken(const CreateTokenRequest& request, const tls::Token& token,
                                              const std::string& created_by, absl::Time now) {
  if (absl::Status status = CheckRequest(request); !status.ok()) return status;
  StoredToken stored;
  stored.set_secret_sha256(Sha256Hex(token.secret));
  stored.set_request_id(request.request_id());
  TokenInfo& info = *stored.mutable_info();
  info.set_id(token.id);
  info.set_role(request.role());
  info.set_user(request.user());
  info.set_created_by(created_by);
  *info.mutable_created() = ToProto(now);
  if (request.has_ttl()) {
    *info.mutable_expires() = ToProto(now + absl::Seconds(request.ttl().seconds()));
  } else if (request.role() == TOKEN_ROLE_WORKER) {
    *info.mutable_expires() = ToProto(now + kJoinTokenLife);
  }
  if (!request.request_id().empty()) {
    // Only the secret's hash is stored, so the first reply cannot be repeated.
    std::erase_if(tokens_, [&](const auto& entry) {
      return entry.second.request_id() == request.request_id() && entry.second.info().created_by() == created_by;
    });
  }
  if (tokens_.size() >= kMaxTokens && !DropEnded(now)) {
    return absl::ResourceExhaustedError(absl::StrCat("there are ", tokens_.size(), " tokens: revoke some"));
  }
  if (!tokens_.emplace(token.id, stored).second) return absl::UnavailableError("two tokens of one id: try again");
  return info;
}

// Never for their age alone: a wrong clock would remove what is valid. Where there are too many, first those that were
// revoked, then the one that ended first.
bool TrustBook::DropEnded(absl::Time now) {
  if (std::erase_if(tokens_, [](const auto& entry) { return entry.second.info().revoked(); }) > 0) return true;
  const auto first = std::min_element(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) {
    return EndOf(a.second.info()) < EndOf(b.second.info());
  });
  if (first == tokens_.end() || EndOf(first->second.info()) > now) return false;
  tokens_.erase(first);
  return true;
}

std::vector<TokenInfo> TrustBook::ListTokens() const {
  std::vector<TokenInfo> infos;
  for (const auto& [id, token] : tokens_) infos.push_back(token.info());
  std::stable_sort(infos.begin(), infos.end(), [](const TokenInfo& a, const TokenInfo& b) {
    return a.created().seconds() < b.created().seconds();
  });
  return infos;
}

absl::StatusOr<TokenInfo> TrustBook::RevokeToken(const std::string& id, absl::Time now) {
  const auto found = tokens_.find(id);
  if (found == tokens_.end()) {
    return absl::NotFoundError(
        absl::StrCat("there is no token with the id \"", id, "\": `muster coordinator token ls` lists them"));
  }
  TokenInfo& info = *found->second.mutable_info();
  if (info.revoked()) return info;
  info.set_revoked(true);
  *info.mutable_expires() = ToProto(std::min(EndOf(info), now));
  return info;
}

absl::StatusOr<Principal> TrustBook::FindToken(const tls::Token& token, absl::Time now) const {
  const std::string digest = Sha256Hex(token.secret);
  const auto found = tokens_.find(token.id);
  // Compares digests, so the time it takes reveals nothing about the secret.
  if (found == tokens_.end() || found->second.secret_sha256() != digest) {
    return absl::UnauthenticatedError(
        "this coordinator does not know the token: it is of another one, or ended long ago; ask an admin for a new one "
        "(muster coordinator token create)");
  }
  const TokenInfo& info = found->second.info();
  if (info.revoked()) {
    return absl::UnauthenticatedError(
        absl::StrCat("the token ", info.id(), " was revoked: ask an admin for a new one"));
  }
  if (now >= EndOf(info)) {
    return absl::UnauthenticatedError(absl::StrCat("the token ", info.id(), " expired on ", Minutes(EndOf(info)),
                                                   ": ask an admin for a new one (muster coordinator token create)"));
  }
  const std::string name = info.user().empty() ? absl::StrCat("token ", info.id()) : info.user();
  return Principal{name, RoleOf(info.role()), {}, {}, info.id()};
}

absl::Status TrustBook::Join(const std::string& node, const std::string& key_sha256, absl::Time expires,
                             absl::Time now) {
  const auto found = nodes_.find(node);
  StoredNode stored = found == nodes_.end() ? StoredNode() : found->second;
  const bool same_key = stored.key_sha256() == key_sha256 || stored.previous_key_sha256() == key_sha256;
  const bool known = !stored.id().empty() && !stored.revoked();
  if (stored.revoked() && same_key) {  // a holder of the key also has its old certificate
    return absl::AlreadyExistsError(absl::StrCat("the key of node ", node, " was revoked: remove the folder trust in ",
                                                 "its state directory, so that it makes a new one"));
  }
  if (known && !same_key) {
    return absl::AlreadyExistsError(absl::StrCat(
        "a node ", node, " has joined before, with another key: if its disk was lost, run `muster ",
        "coordinator revoke ", node, "` first; if this is another machine, remove node_id in its state ", "directory"));
  }
  if (found == nodes_.end() && nodes_.size() >= kMaxNodes)
    return absl::ResourceExhaustedError(absl::StrCat(kMaxNodes, " nodes have joined"));
  if (!known) *stored.mutable_joined() = ToProto(now);
  stored.set_id(node);
  stored.set_key_sha256(key_sha256);
  stored.clear_previous_key_sha256();
  stored.set_revoked(false);
  *stored.mutable_expires() = ToProto(expires);
  nodes_[node] = std::move(stored);
  return absl::OkStatus();
}

absl::Status TrustBook::Renew(const std::string& node, const std::string& key_sha256,
                              const std::string& next_key_sha256, absl::Time expires) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end() || found->second.revoked()) return absl::UnauthenticatedError("the node was revoked");
  // The calling key stays valid, since the reply may be lost.
  found->second.set_previous_key_sha256(key_sha256);
  found->second.set_key_sha256(next_key_sha256);
  *found->second.mutable_expires() = ToProto(expires);
  return absl::OkStatus();
}

absl::Status TrustBook::RevokeNode(const std::string& node) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) {
    return absl::NotFoundError(absl::StrCat("no node ", node, " has joined with a token: `muster nodes` lists nodes"));
  }
  found->second.set_revoked(true);
  return absl::OkStatus();
}

absl::Status TrustBook::CheckNode(const std::string& node, const std::string& key_sha256) const {
  const auto found = nodes_.find(node);
  if (found != nodes_.end() && !found->second.revoked() &&
      (found->second.key_sha256() == key_sha256 || found->second.previous_key_sha256() == key_sha256)) {
    return absl::OkStatus();
  }
  const bool revoked = found != nodes_.end() && found->second.revoked();
  return absl::UnauthenticatedError(
      absl::StrCat("the certificate of node ", node, revoked ? " was revoked" : " is not known here",
                   ": join again with a token (muster coordinator token create --role worker), and with the old ",
                   "certificate removed: STATE/trust of the worker"));
}

}  // namespace muster::rpc
