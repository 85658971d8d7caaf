// Who calls, and what they may do. Every method of every service asks Authorize, with a rule of its own in one table; a
// method without a rule is refused to everybody.
//
// Pure, but for Tokens::Load. Thread-safe after construction.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::rpc {

enum class Role {
  kViewer,     // reads
  kSubmitter,  // reads, submits, and changes its own jobs
  kAdmin,      // all that people may do
  kWorker,     // a worker daemon: only the Workers service, and its own certificate
  kJoiner,     // who has a join token: may ask for a node's certificate, and nothing else
  kLocal,      // whoever reaches the Unix socket, which lies in a 0700 folder of our user: everything
};

struct Principal {
  std::string name;  // becomes the owner of jobs
  Role role = Role::kViewer;
  // Of a worker that showed a certificate: the only node that it may speak for, and the hash of its key. Empty: a
  // worker of this machine, which is believed.
  std::string node;
  std::string key_sha256;
};

// What the call is about.
struct Resource {
  std::optional<std::string> owner;  // of the job; none: no job, or not looked up yet
};

// `method`: "/muster.v1.Jobs/Submit". PermissionDenied says which role would do. Methods that change a job pass while
// the owner is not known, and ask again when it is.
absl::Status Authorize(const Principal& principal, std::string_view method, const Resource& resource);

// Whether the table has a rule for it.
bool HasRule(std::string_view method);

// A token file: lines `token name role`, roles viewer, submitter, admin, worker; blank lines and lines that begin with
// # are skipped.
class Tokens {
 public:
  // InvalidArgument: not a regular file of ours that only we can read, or a bad line (its number is named, never the
  // token). NotFound: no such file.
  static absl::StatusOr<Tokens> Load(const std::string& path);
  static absl::StatusOr<Tokens> Parse(std::string_view text);

  // Unauthenticated: no token was given, or nobody has this one.
  absl::StatusOr<Principal> Find(std::string_view token) const;

 private:
  std::map<std::string, Principal> by_digest_;  // SHA-256 of the token: a look-up tells nothing by its time
};

}  // namespace muster::rpc
