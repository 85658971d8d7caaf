#include "worker/agent/job_paths.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::agent {
namespace {

namespace fs = std::filesystem;

std::string Real(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(path, error);
  return error ? fs::path(path).lexically_normal().string() : real.string();
}

bool IsWithin(const std::string& path, const std::string& folder) {
  const auto [at, end] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return at == folder.end() && (end == path.end() || *end == '/' || folder == "/");
}

absl::Status CheckOne(const char* field, const std::string& path, const std::vector<std::string>& roots,
                      const char* flag, const std::vector<std::string>& own) {
  if (path.empty()) return absl::OkStatus();
  const std::string real = Real(path);
  const std::string what = real == path ? path : absl::StrCat(path, " (", real, ")");
  for (const std::string& folder : own) {
    // Nor a folder around one of them: what is written there may replace it.
    if (!IsWithin(real, Real(folder)) && !IsWithin(Real(folder), real)) continue;
    return absl::PermissionDeniedError(
        absl::StrCat(field, ": ", what, " is, or holds, a folder of the worker daemon itself (", folder, ")"));
  }
  const auto holds = [&](const std::string& root) { return IsWithin(real, Real(root)); };
  if (roots.empty() || std::any_of(roots.begin(), roots.end(), holds)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(field, ": ", what, " is not below ", absl::StrJoin(roots, " or "),
                                                  ", as this worker requires (", flag, ")"));
}

}  // namespace

absl::Status CheckPaths(const Train& train, const PathRules& rules) {
  const auto data = [&](const char* field, const std::string& path) {
    return CheckOne(field, path, rules.data_roots, "--data_roots", rules.own);
  };
  const auto checkpoints = [&](const char* field, const std::string& path) {
    return CheckOne(field, path, rules.checkpoint_roots, "--checkpoint_roots", rules.own);
  };
  absl::Status status;
  status.Update(data("data.tokens", train.data().tokens()));
  status.Update(data("data.images", train.data().images()));
  status.Update(data("data.tensors", train.data().tensors()));
  status.Update(data("data.validation", train.data().validation()));
  status.Update(data("model.from", train.model().from()));
  status.Update(checkpoints("checkpoint.path", train.checkpoint().path()));
  status.Update(checkpoints("checkpoint.resume_from", train.checkpoint().resume_from()));
  status.Update(checkpoints("offload.to", train.offload().to()));
  return status;
}

}  // namespace muster::agent
