#include "coordinator/rpc/authorize.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/file/read_file.h"
#include "common/sha256.h"

namespace muster::rpc {
namespace {

// kReadJob: as kRead, unless the job is private to someone else. kOwn: to submit, and to own the job or template.
enum class Needs { kRead, kReadJob, kSubmit, kOwn, kAdmin, kWorker, kJoin };

struct Rule {
  std::string_view method;
  Needs needs;
};

constexpr Rule kRules[] = {
    {"/muster.v1.Jobs/Submit", Needs::kSubmit},
    {"/muster.v1.Jobs/Plan", Needs::kRead},
    {"/muster.v1.Jobs/Get", Needs::kReadJob},
    {"/muster.v1.Jobs/List", Needs::kRead},
    {"/muster.v1.Jobs/Cancel", Needs::kOwn},
    {"/muster.v1.Jobs/Pause", Needs::kOwn},
    {"/muster.v1.Jobs/Resume", Needs::kOwn},
    {"/muster.v1.Jobs/Delete", Needs::kOwn},
    {"/muster.v1.Jobs/Label", Needs::kOwn},
    {"/muster.v1.Jobs/Note", Needs::kOwn},
    {"/muster.v1.Jobs/Trace", Needs::kOwn},
    {"/muster.v1.Jobs/Checkpoint", Needs::kOwn},
    {"/muster.v1.Jobs/Watch", Needs::kReadJob},
    {"/muster.v1.Jobs/SetTemplate", Needs::kOwn},
    {"/muster.v1.Jobs/GetTemplate", Needs::kRead},
    {"/muster.v1.Jobs/ListTemplates", Needs::kRead},
    {"/muster.v1.Jobs/DeleteTemplate", Needs::kOwn},
    {"/muster.v1.Nodes/List", Needs::kRead},
    {"/muster.v1.Nodes/Use", Needs::kRead},
    {"/muster.v1.Nodes/Drain", Needs::kAdmin},
    {"/muster.v1.Nodes/Undrain", Needs::kAdmin},
    {"/muster.v1.Nodes/Forget", Needs::kAdmin},
    {"/muster.v1.Admin/Version", Needs::kRead},
    {"/muster.v1.Admin/Backup", Needs::kAdmin},
    {"/muster.v1.Admin/ListProjects", Needs::kRead},
    {"/muster.v1.Admin/SetProject", Needs::kAdmin},
    {"/muster.v1.Admin/DeleteProject", Needs::kAdmin},
    {"/muster.v1.Admin/ListReservations", Needs::kRead},
    {"/muster.v1.Admin/SetReservation", Needs::kAdmin},
    {"/muster.v1.Admin/DeleteReservation", Needs::kAdmin},
    {"/muster.v1.Admin/ListAudit", Needs::kAdmin},
    {"/muster.v1.Admin/SignIn", Needs::kRead},
    {"/muster.v1.Workers/Connect", Needs::kWorker},
    {"/muster.v1.Workers/RendezvousSet", Needs::kWorker},
    {"/muster.v1.Workers/RendezvousGet", Needs::kWorker},
    {"/muster.v1.Workers/Sync", Needs::kWorker},
    {"/muster.v1.Workers/FetchTable", Needs::kWorker},
    {"/muster.v1.Trust/Join", Needs::kJoin},
    {"/muster.v1.Trust/Renew", Needs::kWorker},
    {"/muster.v1.Trust/CreateToken", Needs::kAdmin},
    {"/muster.v1.Trust/ListTokens", Needs::kAdmin},
    {"/muster.v1.Trust/RevokeToken", Needs::kAdmin},
    {"/muster.v1.Trust/RevokeNode", Needs::kAdmin},
};

struct NamedRole {
  std::string_view name;
  Role role;
  bool of_token_file;  // may be given there
};

constexpr NamedRole kRoles[] = {
    {"viewer", Role::kViewer, true}, {"submitter", Role::kSubmitter, true}, {"admin", Role::kAdmin, true},
    {"worker", Role::kWorker, true}, {"joiner", Role::kJoiner, false},      {"local", Role::kLocal, false},
};

std::optional<Role> RoleInTokenFile(std::string_view name) {
  for (const NamedRole& role : kRoles) {
    if (role.of_token_file && role.name == name) return role.role;
  }
  return std::nullopt;
}

std::string RolesInTokenFile() {
  std::string names;
  for (const NamedRole& role : kRoles) {
    if (role.of_token_file) absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(role.name));
  }
  return names;
}

// What the caller would need to be allowed; none: it is allowed.
std::optional<std::string> Lacks(const Principal& principal, Needs needs, const Resource& resource) {
  const Role role = principal.role;
  if (role == Role::kLocal) return std::nullopt;
  if (needs == Needs::kJoin) return role == Role::kJoiner ? std::nullopt : std::optional("a join token");
  if (role == Role::kJoiner) return "another token: this one is for joining workers (muster-worker --join-token)";
  if (needs == Needs::kWorker) return role == Role::kWorker ? std::nullopt : std::optional("the role worker");
  if (role == Role::kWorker) return "a role other than worker";
  if (role == Role::kAdmin || needs == Needs::kRead) return std::nullopt;
  if (needs == Needs::kReadJob) {
    if (MayReadJob(principal, resource)) return std::nullopt;
    return absl::StrCat("the role admin, or to be its owner, ", *resource.owner,
                        ": this coordinator keeps jobs private (--private-jobs)");
  }
  if (needs == Needs::kAdmin) return "the role admin";
  if (role != Role::kSubmitter) return "the role submitter or admin";
  if (needs == Needs::kOwn && resource.owner.has_value() && *resource.owner != principal.name) {
    return absl::StrCat("the role admin, or to be its owner, ", *resource.owner);
  }
  return std::nullopt;
}

// "Nodes.Drain" of "/muster.v1.Nodes/Drain".
std::string NameOf(std::string_view method) {
  const std::string whole(method);
  return absl::StrReplaceAll(absl::StripPrefix(whole, "/muster.v1."), {{"/", "."}});
}

const Rule* RuleOf(std::string_view method) {
  for (const Rule& rule : kRules) {
    if (rule.method == method) return &rule;
  }
  return nullptr;
}

}  // namespace

std::string RoleName(Role role) {
  for (const NamedRole& named : kRoles) {
    if (named.role == role) return std::string(named.name);
  }
  return "unknown";
}

bool MayReadJob(const Principal& principal, const Resource& job) {
  if (!job.is_private || principal.role == Role::kAdmin || principal.role == Role::kLocal) return true;
  return !job.owner.has_value() || *job.owner == principal.name;
}

bool HasRule(std::string_view method) { return RuleOf(method) != nullptr; }

absl::Status Authorize(const Principal& principal, std::string_view method, const Resource& resource) {
  const Rule* rule = RuleOf(method);
  if (rule == nullptr) {
    return absl::PermissionDeniedError(absl::StrCat("no role may call ", std::string(method), ": it has no rule"));
  }
  const std::optional<std::string> lacks = Lacks(principal, rule->needs, resource);
  if (!lacks.has_value()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(principal.name, " may not call ", NameOf(method), " here: it needs ", *lacks));
}

absl::StatusOr<Tokens> Tokens::Load(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadPrivateFile(path);
  if (!text.ok()) return absl::Status(text.status().code(), absl::StrCat("token file: ", text.status().message()));
  absl::StatusOr<Tokens> tokens = Parse(*text);
  if (tokens.ok()) return tokens;
  return absl::InvalidArgumentError(absl::StrCat("token file ", path, ", ", tokens.status().message()));
}

absl::StatusOr<Tokens> Tokens::Parse(std::string_view text) {
  Tokens result;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty() || words[0][0] == '#') continue;
    const std::optional<Role> role = words.size() == 3 ? RoleInTokenFile(words[2]) : std::nullopt;
    if (!role.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": expected `token name role` with a role of ", RolesInTokenFile()));
    }
    if (words[0].size() < 16) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": a token needs at least 16 characters"));
    }
    if (!result.by_digest_.emplace(Sha256Hex(words[0]), Principal{words[1], *role, {}, {}}).second) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": this token is there twice"));
    }
  }
  return result;
}

absl::StatusOr<Principal> Tokens::Find(std::string_view token) const {
  if (token.empty()) {
    return absl::UnauthenticatedError(
        "this address needs a token: give --token-file or MUSTER_TOKEN (an admin makes one: muster coordinator token "
        "create)");
  }
  const auto found = by_digest_.find(Sha256Hex(token));
  if (found == by_digest_.end())
    return absl::UnauthenticatedError("the coordinator does not know this token: ask an admin for a new one");
  return found->second;
}

}  // namespace muster::rpc
