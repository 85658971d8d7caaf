#include "worker/agent/job_paths.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "common/file/beneath.h"
#include "common/file_error.h"

namespace muster::agent {
namespace {

namespace fs = std::filesystem;

// The folder of a daemon that `real` is, or is below; empty: none. Every daemon locks its folders (common/file/lock.h),
// and keeps one of these beside the lock.
std::string FolderOfDaemon(const std::string& real) {
  const auto has = [](const fs::path& folder, const char* name) {
    std::error_code error;
    return fs::exists(fs::symlink_status(folder / name, error));
  };
  for (fs::path folder = real; folder.has_relative_path(); folder = folder.parent_path()) {
    if (!has(folder, "lock")) continue;
    for (const char* name : {"node_id", "trainer.sock", "state.db", "trust"}) {
      if (has(folder, name)) return folder;
    }
  }
  return "";
}

absl::Status CheckOne(const char* field, const std::string& path, const std::vector<std::string>& roots,
                      const char* flag, const std::vector<std::string>& own) {
  if (const int error = failpoint::Hit("job_paths.", field)) return FileError(error, absl::StrCat(field, ": ", path));
  const std::string real = RealPath(path);
  const std::string what = real == path ? path : absl::StrCat(path, " (", real, ")");
  for (const std::string& folder : own) {
    // Nor a folder around one of them: what is written there may replace it.
    if (!IsWithin(real, RealPath(folder)) && !IsWithin(RealPath(folder), real)) continue;
    return absl::PermissionDeniedError(
        absl::StrCat(field, ": ", what, " is, or holds, a folder of the worker daemon itself (", folder, ")"));
  }
  if (const std::string daemon = FolderOfDaemon(real); !daemon.empty()) {
    return absl::PermissionDeniedError(
        absl::StrCat(field, ": ", what, " lies in the folder of another daemon, ", daemon));
  }
  if (roots.empty()) return absl::OkStatus();
  const absl::Status status = CheckBeneath(roots, path);
  if (!absl::IsPermissionDenied(status)) return status;
  return absl::PermissionDeniedError(
      absl::StrCat(field, ": ", status.message(), ", as this worker requires (", flag, ")"));
}

}  // namespace

absl::Status CheckPaths(const Train& train, const PathRules& rules, const LookingAt& looking_at) {
  absl::Status status;
  const auto check = [&](const char* field, const std::string& path, const std::vector<std::string>& roots,
                         const char* flag) {
    if (!status.ok() || path.empty()) return;
    if (looking_at != nullptr) looking_at(field, path);
    status = CheckOne(field, path, roots, flag, rules.own);
  };
  const auto data = [&](const char* field, const std::string& path) {
    check(field, path, rules.data_roots, "--data-roots");
  };
  const auto checkpoints = [&](const char* field, const std::string& path) {
    check(field, path, rules.checkpoint_roots, "--checkpoint-roots");
  };
  data("data.tokens", train.data().tokens());
  data("data.images", train.data().images());
  data("data.tensors", train.data().tensors());
  data("data.validation", train.data().validation());
  data("model.from", train.model().from());
  checkpoints("checkpoint.path", train.checkpoint().path());
  checkpoints("checkpoint.resume_from", train.checkpoint().resume_from());
  checkpoints("offload.to", train.offload().to());
  return status;
}

absl::Status CheckRules(const PathRules& rules) {
  for (const auto& [flag, roots] :
       {std::pair("--data-roots", &rules.data_roots), {"--checkpoint-roots", &rules.checkpoint_roots}}) {
    for (const std::string& root : *roots) {
      for (const std::string& own : rules.own) {
        if (!IsWithin(RealPath(own), RealPath(root))) continue;
        return absl::InvalidArgumentError(absl::StrCat(flag, ": ", root, " holds a folder of this daemon, ", own,
                                                       ", where no job may be: name folders beside it"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace muster::agent
