#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/file.h"
#include "checkpoint/folder_owner.h"
#include "common/checkpoint_names.h"
#include "common/failpoint.h"
#include "common/file/beneath.h"
#include "common/file_error.h"

namespace muster::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int kUnpublishedKept = 2;

std::vector<std::string> EntryNames(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto it = fs::directory_iterator(path, error); !error && it != fs::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename());
  }
  return names;
}

absl::Status RemoveTree(const std::string& path) {
  if (const int error = failpoint::Hit("checkpoint.retain.remove")) {
    return FileError(error, absl::StrCat("removing ", path));
  }
  std::error_code error;
  fs::remove_all(path, error);
  return error ? FileError(error.value(), absl::StrCat("removing ", path)) : absl::OkStatus();
}

// After resuming from an older step (the newest was damaged), a later generation writes lower steps.
bool WrittenBefore(const StepName& a, const StepName& b) {
  return std::tie(a.generation, a.step) < std::tie(b.generation, b.step);
}

// Renamed first, so that a folder with a step's name is never partly removed.
absl::Status RemoveStep(const std::string& path, const StepName& name) {
  const std::string from = absl::StrCat(path, "/", name.Directory()), to = absl::StrCat(path, "/", name.Removing());
  if (absl::Status status = Rename(from, to, "checkpoint.retain.rename"); !status.ok()) return status;
  return RemoveTree(to);
}

}  // namespace

absl::Status CheckListable(const std::string& path) {
  std::error_code error;
  fs::directory_iterator ignored(path, error);
  return error == std::errc::permission_denied ? FileError(EACCES, path) : absl::OkStatus();
}

std::vector<StepName> List(const std::string& path) {
  std::vector<StepName> steps;
  for (const std::string& name : EntryNames(path)) {
    if (const auto step = ParseDirectory(name); step.has_value()) steps.push_back(*step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::vector<std::string> StepFolders(const std::string& path) {
  std::error_code error;
  if (fs::exists(absl::StrCat(path, "/", kManifestFile), error)) return {path};
  std::vector<std::string> folders;
  for (const StepName& step : List(path)) folders.push_back(absl::StrCat(path, "/", step.Directory()));
  return folders;
}

absl::StatusOr<std::vector<std::string>> Retain(const std::string& path, const Holder& holder, uint64_t generation,
                                                const std::set<std::string>& published,
                                                const std::set<std::string>& pending) {
  if (absl::Status status = CheckConfined(path); !status.ok()) return status;
  const absl::StatusOr<FolderOwner> owner = OwnerOf(path);
  if (!owner.ok()) return owner.status();
  if (owner->job().empty()) return std::vector<std::string>();
  if (!Owns(*owner, holder)) return BelongsToAnother(path, *owner, holder);
  std::optional<StepName> newest;
  for (const std::string& name : published) {
    const std::optional<StepName> step = ParseDirectory(name);
    if (step.has_value() && (!newest.has_value() || WrittenBefore(*newest, *step))) newest = step;
  }
  std::vector<StepName> steps = List(path);
  std::sort(steps.begin(), steps.end(), [](const StepName& a, const StepName& b) { return WrittenBefore(b, a); });
  auto kept = static_cast<size_t>(std::count_if(
      steps.begin(), steps.end(), [&](const StepName& step) { return published.contains(step.Directory()); }));
  std::vector<std::string> removed;
  int unpublished = 0;
  for (const StepName& step : steps) {
    if (published.contains(step.Directory())) continue;
    const bool newer = !newest.has_value() || WrittenBefore(*newest, step);
    if (newer && pending.contains(step.Directory())) continue;
    if (WriterOf(absl::StrCat(path, "/", step.Directory())) != holder.job) continue;
    if (newer && ++unpublished <= kUnpublishedKept) continue;
    if (step.generation > generation) continue;
    if (kept < published.size()) {
      ++kept;
      continue;
    }
    if (absl::Status status = RemoveStep(path, step); !status.ok()) return status;
    removed.push_back(step.Directory());
  }
  for (const std::string& name : EntryNames(path)) {
    const std::optional<StepName> staging = ParseStaging(name);
    const bool stale = staging.has_value() && staging->generation < generation;
    const std::optional<StepName> half = ParseRemoving(name);
    const bool claim = absl::StartsWith(name, kClaimPrefix);  // of a killed process, or in vain
    if (!stale && !claim && !(half.has_value() && half->generation <= generation)) continue;
    if (absl::Status status = RemoveTree(absl::StrCat(path, "/", name)); !status.ok()) return status;
    removed.push_back(name);
  }
  return removed;
}

}  // namespace muster::checkpoint
