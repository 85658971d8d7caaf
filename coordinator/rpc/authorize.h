// Identifies callers and checks their permissions. Every method of every service calls Authorize; one table has a rule
// for each method, and a method without a rule is refused to all callers.
//
// Pure, except for Tokens::Load. Thread-safe after construction.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::rpc {

enum class Role {
  kViewer,     // may read
  kSubmitter,  // may read, submit, and change its own jobs
  kAdmin,      // may do everything that users can do
  kWorker,     // a worker daemon: only the Workers service, and its own certificate
  kJoiner,     // the holder of a join token: may only request a node certificate
  kLocal,      // a caller on the Unix socket, which is in a 0700 folder of our user: everything
};

// "viewer", "submitter", "admin", "worker", "joiner", "local".
std::string RoleName(Role role);

struct Principal {
  std::string name;  // the owner of jobs that it submits
  Role role = Role::kViewer;
  // For a worker with a certificate: the only node that it may act for, and the hash of its key. Empty: a worker of
  // this machine, which is trusted.
  std::string node;
  std::string key_sha256;
  std::string token_id = {};  // of the token that it showed, if an admin made that; its streams end when it is revoked
};

// The object of a call.
struct Resource {
  std::optional<std::string> owner;  // of the job or template; none: there is none, or it is not looked up yet
  bool is_private = false;           // jobs are read by their owners and admins only (--private-jobs)
};

// `method`: "/muster.v1.Jobs/Submit". PermissionDenied: the message names a role that is allowed. Methods that concern
// a job or a template pass while the owner is unknown, and call again once it is known.
absl::Status Authorize(const Principal& principal, std::string_view method, const Resource& resource);

// Whether the principal may read everything of a job: its spec, logs, metrics and failures.
bool MayReadJob(const Principal& principal, const Resource& job);

// Whether the table has a rule for the method.
bool HasRule(std::string_view method);

// A token file: lines `token name role`, with the roles viewer, submitter, admin and worker. Blank lines and lines that
// start with # are skipped.
class Tokens {
 public:
  // Errors as ReadPrivateFile (common/file/read_file.h). InvalidArgument: a bad line; the message has its number, never
  // the token.
  static absl::StatusOr<Tokens> Load(const std::string& path);
  static absl::StatusOr<Tokens> Parse(std::string_view text);

  // Unauthenticated: no token was given, or the token is unknown.
  absl::StatusOr<Principal> Find(std::string_view token) const;

 private:
  std::map<std::string, Principal> by_digest_;  // SHA-256 of the token, so lookup time reveals nothing
};

}  // namespace muster::rpc
