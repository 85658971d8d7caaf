#include "coordinator/web/sessions.h"

#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/file/durable_file.h"
#include "common/file/read_file.h"
#include "common/log/log.h"
#include "common/proto_time.h"
#include "common/random_text.h"
#include "common/sha256.h"

namespace muster::web {
namespace {

constexpr size_t kIdSize = 48;  // 240 bits: of the hash that names it, and of the key
constexpr size_t kCsrfSize = 32;
constexpr size_t kNonceSize = 12, kTagSize = 16;

struct FreeCipher {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};

// A key and a name of the same id, neither of which tells the other.
std::string KeyOf(std::string_view id) {
  return absl::HexStringToBytes(
      Sha256Hex(absl::StrCat("muster web session key ", absl::string_view(id.data(), id.size()))));
}
std::string NameOf(std::string_view id) {
  return Sha256Hex(absl::StrCat("muster web session name ", absl::string_view(id.data(), id.size())));
}

unsigned char* Bytes(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }
const unsigned char* Bytes(const std::string& text) { return reinterpret_cast<const unsigned char*>(text.data()); }

// AES-256-GCM. A key seals one text only, so the nonce may be constant.
absl::StatusOr<std::string> Seal(const std::string& key, const std::string& text) {
  const std::unique_ptr<EVP_CIPHER_CTX, FreeCipher> context(EVP_CIPHER_CTX_new());
  const std::string nonce(kNonceSize, '\0');
  std::string out(text.size() + kTagSize, '\0');
  int size = 0, last = 0;
  const bool sealed =
      EVP_EncryptInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, Bytes(key), Bytes(nonce)) == 1 &&
      EVP_EncryptUpdate(context.get(), Bytes(out), &size, Bytes(text), static_cast<int>(text.size())) == 1 &&
      EVP_EncryptFinal_ex(context.get(), Bytes(out) + size, &last) == 1 &&
      EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_GET_TAG, kTagSize, Bytes(out) + text.size()) == 1;
  if (!sealed) return absl::InternalError("OpenSSL cannot encrypt a session");
  return out;
}

std::optional<std::string> Unseal(const std::string& key, std::string sealed) {
  if (sealed.size() < kTagSize) return std::nullopt;
  const std::unique_ptr<EVP_CIPHER_CTX, FreeCipher> context(EVP_CIPHER_CTX_new());
  const std::string nonce(kNonceSize, '\0');
  std::string out(sealed.size() - kTagSize, '\0');
  int size = 0, last = 0;
  const bool opened =
      EVP_DecryptInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, Bytes(key), Bytes(nonce)) == 1 &&
      EVP_DecryptUpdate(context.get(), Bytes(out), &size, Bytes(std::as_const(sealed)), static_cast<int>(out.size())) ==
          1 &&
      EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_SET_TAG, kTagSize, Bytes(sealed) + out.size()) == 1 &&
      EVP_DecryptFinal_ex(context.get(), Bytes(out) + size, &last) == 1;
  return opened ? std::optional(out) : std::nullopt;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Sessions>> Sessions::Open(const std::string& path, const Clock* clock) {
  std::unique_ptr<Sessions> sessions(new Sessions(path, clock));
  const absl::StatusOr<std::string> bytes = ReadPrivateFile(path);
  if (!bytes.ok() && !absl::IsNotFound(bytes.status())) return bytes.status();
  StoredSessions stored;
  if (bytes.ok() && !stored.ParseFromString(*bytes)) {
    LogWarn("the file of web sessions is damaged: everybody signs in again", {{"path", path}});
    stored.Clear();
  }
  const MutexLock lock(sessions->mutex_);
  for (StoredSession& session : *stored.mutable_sessions()) {
    const std::string digest = session.id_sha256();
    sessions->by_digest_[digest] = std::move(session);
  }
  sessions->DropOld();
  return sessions;
}

absl::StatusOr<std::string> Sessions::Create(const rpc::Credential& credential) {
  const absl::StatusOr<std::string> id = RandomText(kIdSize), csrf = RandomText(kCsrfSize);
  if (!id.ok()) return id.status();
  if (!csrf.ok()) return csrf.status();
  StoredSession session;
  session.set_id_sha256(NameOf(*id));
  session.set_csrf(*csrf);
  session.set_user(credential.user);
  session.set_role(credential.role);
  session.set_local(credential.local);
  if (!credential.local) {
    absl::StatusOr<std::string> sealed = Seal(KeyOf(*id), credential.token);
    if (!sealed.ok()) return sealed.status();
    session.set_sealed_token(*sealed);
  }
  const MutexLock lock(mutex_);
  DropOld();
  DropOldestOf(&credential.user);
  DropOldestOf(nullptr);
  *session.mutable_created() = ToProto(clock_->Read().wall);
  by_digest_[session.id_sha256()] = session;
  if (absl::Status saved = Save(); !saved.ok()) {
    by_digest_.erase(session.id_sha256());
    return saved;
  }
  return id;
}

std::optional<Session> Sessions::Find(std::string_view id) {
  if (id.size() != kIdSize) return std::nullopt;
  const MutexLock lock(mutex_);
  DropOld();
  const auto found = by_digest_.find(NameOf(id));
  if (found == by_digest_.end()) return std::nullopt;
  const StoredSession& stored = found->second;
  Session session{{stored.local(), "", stored.user(), stored.role()}, stored.csrf()};
  if (!stored.local()) {
    std::optional<std::string> token = Unseal(KeyOf(id), stored.sealed_token());
    if (!token.has_value()) return std::nullopt;
    session.credential.token = *std::move(token);
  }
  return session;
}

void Sessions::End(std::string_view id) {
  const MutexLock lock(mutex_);
  if (by_digest_.erase(NameOf(id)) == 0) return;
  if (absl::Status saved = Save(); !saved.ok()) LogWarn("cannot save web sessions", {{"error", saved}});
}

void Sessions::DropOld() {
  const absl::Time now = clock_->Read().wall;
  std::erase_if(by_digest_, [&](const auto& entry) {
    const absl::Duration age = now - FromProto(entry.second.created());
    return age >= kLife || age < -kLife;  // a clock that was mended
  });
}

void Sessions::DropOldestOf(const std::string* user) {
  const auto of_user = [&](const auto& entry) { return user == nullptr || entry.second.user() == *user; };
  const auto count = static_cast<size_t>(std::count_if(by_digest_.begin(), by_digest_.end(), of_user));
  if (count < (user == nullptr ? kMost : kMostOfUser)) return;
  auto oldest = by_digest_.end();
  for (auto at = by_digest_.begin(); at != by_digest_.end(); ++at) {
    if (!of_user(*at)) continue;
    if (oldest == by_digest_.end() || FromProto(at->second.created()) < FromProto(oldest->second.created())) {
      oldest = at;
    }
  }
  by_digest_.erase(oldest);
}

absl::Status Sessions::Save() {
  StoredSessions stored;
  for (const auto& [digest, session] : by_digest_) *stored.add_sessions() = session;
  return WriteDurably(path_, stored.SerializeAsString());
}

}  // namespace muster::web
