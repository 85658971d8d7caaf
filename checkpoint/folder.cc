#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <tuple>

#include <google/protobuf/util/json_util.h>
#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/file.h"
#include "common/failpoint.h"
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

// The job in a manifest that may be damaged; none: unreadable.
std::optional<std::string> JobOf(const std::string& directory) {
  std::ifstream in(absl::StrCat(directory, "/", kManifestFile), std::ios::binary);
  const std::string json{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  Manifest manifest;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!google::protobuf::util::JsonStringToMessage(json, &manifest, options).ok()) return std::nullopt;
  return manifest.job();
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

absl::Status Claim(const std::string& path, const std::string& job) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return FileError(error.value(), absl::StrCat("creating checkpoint.path ", path));
  const std::string probe = absl::StrCat(path, "/.probe-", getpid());
  fs::create_directory(probe, error);
  if (error) return FileError(error.value(), absl::StrCat("writing to checkpoint.path ", path));
  fs::remove(probe, error);
  for (const StepName& step : List(path)) {
    const std::string directory = absl::StrCat(path, "/", step.Directory());
    const std::optional<std::string> owner = JobOf(directory);
    if (!owner.has_value() || *owner == job) continue;
    return absl::FailedPreconditionError(absl::StrCat("checkpoint.path ", path, " holds checkpoints of job ", *owner,
                                                      " (", step.Directory(), "): give job ", job,
                                                      " a folder of its own (checkpoint.resume_from resumes from a "
                                                      "checkpoint of another job), or move the old one away"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Retain(const std::string& path, uint64_t generation,
                                                const std::set<std::string>& published,
                                                const std::set<std::string>& pending) {
  std::optional<StepName> newest;
  for (const std::string& name : published) {
    const std::optional<StepName> step = ParseDirectory(name);
    if (step.has_value() && (!newest.has_value() || WrittenBefore(*newest, *step))) newest = step;
  }
  std::vector<StepName> steps = List(path);
  std::sort(steps.begin(), steps.end(), [](const StepName& a, const StepName& b) { return WrittenBefore(b, a); });
  std::vector<std::string> removed;
  int unpublished = 0;
  for (const StepName& step : steps) {
    if (published.contains(step.Directory())) continue;
    const bool newer = !newest.has_value() || WrittenBefore(*newest, step);
    if (newer && (pending.contains(step.Directory()) || ++unpublished <= kUnpublishedKept)) continue;
    if (step.generation > generation) continue;
    if (absl::Status status = RemoveStep(path, step); !status.ok()) return status;
    removed.push_back(step.Directory());
  }
  for (const std::string& name : EntryNames(path)) {
    const std::optional<StepName> staging = ParseStaging(name);
    const bool stale = staging.has_value() && staging->generation < generation;
    const std::optional<StepName> half = ParseRemoving(name);
    if (!stale && !(half.has_value() && half->generation <= generation)) continue;
    if (absl::Status status = RemoveTree(absl::StrCat(path, "/", name)); !status.ok()) return status;
    removed.push_back(name);
  }
  return removed;
}

}  // namespace muster::checkpoint
