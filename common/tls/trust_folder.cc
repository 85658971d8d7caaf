#include "common/tls/trust_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/file/durable_file.h"
#include "common/file/private_folder.h"
#include "common/file/read_file.h"

namespace muster::tls {
namespace {

constexpr absl::Duration kAuthorityLife = absl::Hours(24 * 3653);
constexpr absl::Duration kServerLife = absl::Hours(24 * 825);
constexpr FileOptions kPublic{.mode = 0644};
constexpr uint64_t kMaxCertificateBytes = uint64_t{1} << 20;

bool Exists(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0;
}

absl::Status InFile(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

// Writes the key first: a certificate without its key would look like a damaged pair.
absl::StatusOr<KeyPair> MakeAuthorityFiles(const std::string& folder, absl::Time now) {
  KeyPair pair;
  absl::StatusOr<std::string> key = MakeKey();
  if (!key.ok()) return key.status();
  pair.key = *std::move(key);
  absl::StatusOr<std::string> certificate = MakeAuthority(pair.key, "muster authority", ValidFor(kAuthorityLife, now));
  if (!certificate.ok()) return certificate.status();
  pair.certificate = *std::move(certificate);
  absl::Status status = WriteDurably(folder + "/ca.key", pair.key);
  if (status.ok()) status = WriteDurably(folder + "/ca.crt", pair.certificate, kPublic);
  if (!status.ok()) return status;
  return pair;
}

absl::StatusOr<KeyPair> MakeServerFiles(const std::string& folder, const KeyPair& authority,
                                        const std::vector<std::string>& hosts, absl::Time now) {
  KeyPair pair;
  absl::StatusOr<std::string> key = MakeKey();
  if (!key.ok()) return key.status();
  pair.key = *std::move(key);
  const absl::StatusOr<std::string> request = MakeRequest(pair.key, "muster coordinator");
  if (!request.ok()) return request.status();
  const absl::StatusOr<Certificate> of_authority = ReadCertificate(authority.certificate);
  if (!of_authority.ok()) return of_authority.status();
  const absl::StatusOr<std::string> certificate = Sign(
      *request, authority, {Use::kServer, "muster coordinator", hosts, ValidUnder(*of_authority, kServerLife, now)});
  if (!certificate.ok()) return certificate.status();
  // Appends the authority, so that a client that has only its fingerprint can fetch it here.
  pair.certificate = *certificate + authority.certificate;
  // The files are replaced one at a time: in between the pair does not match, which LoadTrust repairs.
  absl::Status status = WriteDurably(folder + "/server.key", pair.key);
  if (status.ok()) status = WriteDurably(folder + "/server.crt", pair.certificate, kPublic);
  if (!status.ok()) return status;
  return pair;
}

absl::StatusOr<KeyPair> ReadPair(const std::string& folder, const std::string& name) {
  absl::StatusOr<std::string> key = ReadPrivateFile(absl::StrCat(folder, "/", name, ".key"));
  if (!key.ok()) return key.status();
  const std::string path = absl::StrCat(folder, "/", name, ".crt");
  absl::StatusOr<std::string> certificate = ReadWhole(path, kMaxCertificateBytes);
  if (!certificate.ok()) return certificate.status();
  return KeyPair{*std::move(certificate), *std::move(key)};
}

absl::StatusOr<KeyPair> ReadAuthority(const std::string& folder, absl::Time now) {
  const std::string path = folder + "/ca.crt";
  absl::StatusOr<KeyPair> authority = ReadPair(folder, "ca");
  if (!authority.ok()) return authority.status();
  if (absl::Status status = CheckPair(*authority); !status.ok()) return InFile(path, status);
  const absl::StatusOr<Certificate> facts = ReadCertificate(authority->certificate);
  if (!facts.ok()) return InFile(path, facts.status());
  if (!facts->is_authority) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not the certificate of an authority"));
  }
  if (now >= facts->validity.end) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " expired on ", absl::FormatTime("%Y-%m-%d", facts->validity.end, absl::UTCTimeZone()),
                     ": move ", folder, " away, run `muster coordinator init`, and let every worker join again"));
  }
  return authority;
}

absl::StatusOr<Trust> Complete(KeyPair authority, KeyPair server) {
  absl::StatusOr<Certificate> of_authority = ReadCertificate(authority.certificate);
  if (!of_authority.ok()) return of_authority.status();
  absl::StatusOr<Certificate> of_server = ReadCertificate(server.certificate);
  if (!of_server.ok()) return of_server.status();
  return Trust{std::move(authority), std::move(server), *std::move(of_authority), *std::move(of_server)};
}

}  // namespace

std::string TrustFolderOf(const std::string& state_dir) { return state_dir + "/trust"; }

bool HasTrust(const std::string& state_dir) { return Exists(TrustFolderOf(state_dir) + "/ca.crt"); }

absl::StatusOr<Trust> MakeTrust(const std::string& state_dir, const std::vector<std::string>& hosts, absl::Time now) {
  const std::string folder = TrustFolderOf(state_dir);
  if (absl::Status status = MakePrivateFolder(folder); !status.ok()) return status;
  absl::StatusOr<KeyPair> authority =
      HasTrust(state_dir) ? ReadAuthority(folder, now) : MakeAuthorityFiles(folder, now);
  if (!authority.ok()) return authority.status();
  absl::StatusOr<KeyPair> server = MakeServerFiles(folder, *authority, hosts, now);
  if (!server.ok()) return server.status();
  return Complete(*std::move(authority), *std::move(server));
}

absl::StatusOr<Trust> LoadTrust(const std::string& state_dir, absl::Time now) {
  if (!HasTrust(state_dir)) {
    return absl::NotFoundError(absl::StrCat("there is no authority in ", TrustFolderOf(state_dir),
                                            "; make one with: muster coordinator init --state-dir ", state_dir));
  }
  const std::string folder = TrustFolderOf(state_dir);
  if (absl::Status status = MakePrivateFolder(folder); !status.ok()) return status;
  absl::StatusOr<KeyPair> authority = ReadAuthority(folder, now);
  if (!authority.ok()) return authority.status();
  absl::StatusOr<KeyPair> server = ReadPair(folder, "server");
  if (!server.ok()) return server.status();
  const absl::StatusOr<Certificate> facts = ReadCertificate(server->certificate);
  if (!facts.ok()) return InFile(folder + "/server.crt", facts.status());
  const bool due = facts->validity.end - now < kServerLife / 3 || facts->validity.begin > now + kClockSkew;
  if (due || !CheckPair(*server).ok() || !CheckSignedBy(server->certificate, authority->certificate).ok()) {
    server = MakeServerFiles(folder, *authority, facts->hosts, now);
    if (!server.ok()) return server.status();
  }
  return Complete(*std::move(authority), *std::move(server));
}

}  // namespace muster::tls
