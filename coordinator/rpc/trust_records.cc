#include "coordinator/rpc/trust_records.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "common/sha256.h"
#include "common/tls/private_file.h"

namespace muster::rpc {
namespace {

constexpr uint32_t kFormat = 1;
constexpr absl::Duration kJoinTokenLife = absl::Hours(1);
// How long expired and revoked tokens are still listed, and refused with their reason.
constexpr absl::Duration kKeepEnded = absl::Hours(24 * 7);
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

absl::StatusOr<std::unique_ptr<TrustRecords>> TrustRecords::Open(const std::string& path) {
  std::unique_ptr<TrustRecords> records(new TrustRecords(path));
  const absl::StatusOr<std::string> bytes = tls::ReadPrivateFile(path);
  if (absl::IsNotFound(bytes.status())) return records;
  if (!bytes.ok()) return bytes.status();
  StoredTrust stored;
  if (!stored.ParseFromString(*bytes)) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: restore a copy, or remove it; then users need new ",
                                            "tokens, and workers join again"));
  }
  if (stored.format() != kFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " has format ", stored.format(), ", this build reads ", kFormat, ": install a newer one"));
  }
  records->Load(stored);
  return records;
}

void TrustRecords::Load(const StoredTrust& stored) {
  const MutexLock lock(mutex_);
  for (const StoredToken& token : stored.tokens()) tokens_[token.info().id()] = token;
  for (const StoredNode& node : stored.nodes()) nodes_[node.id()] = node;
}

absl::Status TrustRecords::Store(std::map<std::string, StoredToken> tokens, std::map<std::string, StoredNode> nodes) {
  StoredTrust stored;
  stored.set_format(kFormat);
  for (const auto& [id, token] : tokens) *stored.add_tokens() = token;
  for (const auto& [id, node] : nodes) *stored.add_nodes() = node;
  if (absl::Status status = tls::WritePrivateFile(path_, stored.SerializeAsString()); !status.ok()) return status;
  tokens_ = std::move(tokens);
  nodes_ = std::move(nodes);
  return absl::OkStatus();
}

void TrustRecords::PruneEnded(absl::Time now) {
  std::erase_if(tokens_, [&](const auto& entry) { return EndOf(entry.second.info()) + kKeepEnded < now; });
}

absl::StatusOr<CreateTokenReply> TrustRecords::CreateToken(const CreateTokenRequest& request,
                                                           const std::string& authority_sha256,
                                                           const std::string& created_by, absl::Time now) {
  if (absl::Status status = CheckRequest(request); !status.ok()) return status;
  const absl::StatusOr<tls::Token> token = tls::MakeToken(authority_sha256);
  if (!token.ok()) return token.status();
  StoredToken stored;
  stored.set_secret_sha256(Sha256Hex(token->secret));
  stored.set_request_id(request.request_id());
  TokenInfo& info = *stored.mutable_info();
  info.set_id(token->id);
  info.set_role(request.role());
  info.set_user(request.user());
  info.set_created_by(created_by);
  *info.mutable_created() = ToProto(now);
  if (request.has_ttl()) {
    *info.mutable_expires() = ToProto(now + absl::Seconds(request.ttl().seconds()));
  } else if (request.role() == TOKEN_ROLE_WORKER) {
    *info.mutable_expires() = ToProto(now + kJoinTokenLife);
  }
  const MutexLock lock(mutex_);
  PruneEnded(now);
  std::map<std::string, StoredToken> tokens = tokens_;
  if (!request.request_id().empty()) {
    // Only the secret's hash is stored, so the first reply cannot be repeated.
    std::erase_if(tokens, [&](const auto& entry) {
      return entry.second.request_id() == request.request_id() && entry.second.info().created_by() == created_by;
    });
  }
  if (tokens.size() >= kMaxTokens) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", tokens.size(), " tokens: revoke some; they go a ", "week after they ended"));
  }
  if (!tokens.emplace(token->id, stored).second) return absl::UnavailableError("two tokens of one id: try again");
  if (absl::Status status = Store(std::move(tokens), nodes_); !status.ok()) return status;
  CreateTokenReply reply;
  reply.set_token(tls::ToString(*token));
  *reply.mutable_info() = info;
  return reply;
}

std::vector<TokenInfo> TrustRecords::ListTokens() const {
  std::vector<TokenInfo> infos;
  {
    const MutexLock lock(mutex_);
    for (const auto& [id, token] : tokens_) infos.push_back(token.info());
  }
  std::stable_sort(infos.begin(), infos.end(), [](const TokenInfo& a, const TokenInfo& b) {
    return a.created().seconds() < b.created().seconds();
  });
  return infos;
}

absl::StatusOr<TokenInfo> TrustRecords::RevokeToken(const std::string& id, absl::Time now) {
  const MutexLock lock(mutex_);
  std::map<std::string, StoredToken> tokens = tokens_;
  const auto found = tokens.find(id);
  if (found == tokens.end()) {
    return absl::NotFoundError(
        absl::StrCat("there is no token with the id \"", id, "\": `muster coordinator token ls` lists them"));
  }
  TokenInfo& info = *found->second.mutable_info();
  if (info.revoked()) return info;
  info.set_revoked(true);
  *info.mutable_expires() = ToProto(std::min(EndOf(info), now));
  TokenInfo revoked = info;
  if (absl::Status status = Store(std::move(tokens), nodes_); !status.ok()) return status;
  return revoked;
}

absl::StatusOr<Principal> TrustRecords::FindToken(const tls::Token& token, absl::Time now) const {
  const std::string digest = Sha256Hex(token.secret);
  const MutexLock lock(mutex_);
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
  return Principal{name, RoleOf(info.role()), {}, {}};
}

absl::Status TrustRecords::Join(const std::string& node, const std::string& key_sha256, absl::Time expires,
                                absl::Time now) {
  const MutexLock lock(mutex_);
  std::map<std::string, StoredNode> nodes = nodes_;
  StoredNode& stored = nodes[node];
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
  if (nodes.size() > kMaxNodes) return absl::ResourceExhaustedError(absl::StrCat(kMaxNodes, " nodes have joined"));
  if (!known) *stored.mutable_joined() = ToProto(now);
  stored.set_id(node);
  stored.set_key_sha256(key_sha256);
  stored.clear_previous_key_sha256();
  stored.set_revoked(false);
  *stored.mutable_expires() = ToProto(expires);
  return Store(tokens_, std::move(nodes));
}

absl::Status TrustRecords::Renew(const std::string& node, const std::string& key_sha256,
                                 const std::string& next_key_sha256, absl::Time expires) {
  const MutexLock lock(mutex_);
  std::map<std::string, StoredNode> nodes = nodes_;
  const auto found = nodes.find(node);
  if (found == nodes.end() || found->second.revoked()) return absl::UnauthenticatedError("the node was revoked");
  // The calling key stays valid, since the reply may be lost.
  found->second.set_previous_key_sha256(key_sha256);
  found->second.set_key_sha256(next_key_sha256);
  *found->second.mutable_expires() = ToProto(expires);
  return Store(tokens_, std::move(nodes));
}

absl::Status TrustRecords::RevokeNode(const std::string& node) {
  const MutexLock lock(mutex_);
  std::map<std::string, StoredNode> nodes = nodes_;
  const auto found = nodes.find(node);
  if (found == nodes.end()) {
    return absl::NotFoundError(absl::StrCat("no node ", node, " has joined with a token: `muster nodes` lists nodes"));
  }
  if (found->second.revoked()) return absl::OkStatus();
  found->second.set_revoked(true);
  return Store(tokens_, std::move(nodes));
}

absl::Status TrustRecords::CheckNode(const std::string& node, const std::string& key_sha256) const {
  const MutexLock lock(mutex_);
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
