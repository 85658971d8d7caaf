// The coordinator's TLS identity: STATE/trust (0700) with
//   ca.crt ca.key          the authority, made once, ten years
//   server.crt server.key  the coordinator's own certificate, 825 days; server.crt is followed by ca.crt
//   records.pb             tokens and nodes (coordinator/rpc/trust_records.h)
// Keys are 0600, certificates 0644 (they are no secrets, and users are given ca.crt).
//
// Not thread-safe: one process writes it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/tls/certificate.h"

namespace muster::tls {

struct Trust {
  KeyPair authority;
  KeyPair server;
  Certificate authority_facts;
  Certificate server_facts;
};

// STATE/trust.
std::string TrustFolderOf(const std::string& state_dir);
// Whether `muster coordinator init` was run for this state directory.
bool HasTrust(const std::string& state_dir);

// Creates the folder and the authority if they do not exist, and always a new server certificate for `hosts`. Never
// replaces an authority, since every client that pinned it would be locked out. InvalidArgument: an invalid host.
// PermissionDenied: a folder or key that other users may access.
absl::StatusOr<Trust> MakeTrust(const std::string& state_dir, const std::vector<std::string>& hosts, absl::Time now);

// Reads it, and makes a new server certificate for the same hosts when less than a third of its life is left. NotFound:
// `muster coordinator init` was not run. InvalidArgument, PermissionDenied: the file that is wrong.
absl::StatusOr<Trust> LoadTrust(const std::string& state_dir, absl::Time now);

}  // namespace muster::tls
