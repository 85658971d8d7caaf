#include "cli/spec/paths.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/spec/source_text.h"

namespace muster::cli {
namespace {

// A message holds no other text.
bool CanBeSent(const std::string& folder, const char* path, Reading& reading) {
  if (IsUtf8(folder)) return true;
  reading.problems.push_back(Problem{
      reading.sources.Find(path), path,
      absl::StrCat("the name of the folder ", folder, " is not UTF-8: rename it, or write an absolute path"), ""});
  return false;
}

}  // namespace

const std::string& LibraryOf(const v1::JobSpec& spec) { return spec.train().model().custom().library(); }

std::string AbsolutePath(const std::string& path, const std::string& folder) {
  if (absl::StartsWith(path, "/")) return path;
  absl::string_view rest = path;
  while (absl::ConsumePrefix(&rest, "./")) {
  }
  // Keeps "..": after a symbolic link it is not the folder before it.
  if (rest.empty() || rest == ".") return folder;
  return absl::StrCat(folder, absl::EndsWith(folder, "/") ? "" : "/", rest);
}

namespace {

// Without "missing/..": creating the path would leave an empty folder "missing", and without that folder the path leads
// nowhere. What is there may be a symbolic link, after which ".." is elsewhere.
std::string WithoutMissingDetours(const std::string& path) {
  if (!absl::StrContains(path, "..")) return path;
  std::filesystem::path kept;
  for (const std::filesystem::path& part : std::filesystem::path(path)) {
    std::error_code unknown;
    const bool missing = std::filesystem::symlink_status(kept, unknown).type() == std::filesystem::file_type::not_found;
    kept = part == ".." && missing ? kept.parent_path() : kept / part;
  }
  return kept;
}

}  // namespace

void AddDefaultPath(const std::string& folder, Reading& reading) {
  const bool exec = reading.spec.has_exec();
  if (exec ? !reading.spec.exec().workdir().empty() : reading.spec.train().checkpoint().has_path()) return;
  if (!CanBeSent(folder, exec ? "workdir" : "checkpoint.path", reading)) return;
  if (exec) {
    reading.spec.mutable_exec()->set_workdir(folder);
  } else {
    reading.spec.mutable_train()->mutable_checkpoint()->set_path(AbsolutePath("runs/{job}", folder));
  }
}

void MakePathsAbsolute(const FolderOf& folder_of, const std::string& working_folder, Reading& reading) {
  const auto fix = [&](const char* path, std::string& value) {
    if (value.empty()) return;
    const Location& where = reading.sources.Find(path);
    if (value == "~" || absl::StartsWith(value, "~/")) {
      reading.problems.push_back(Problem{where, path, "~ is not expanded here: write the absolute path", ""});
      return;
    }
    const std::string folder = where.line > 0 && where.source ? folder_of(*where.source) : working_folder;
    if (absl::StartsWith(value, "/") || CanBeSent(folder, path, reading)) value = AbsolutePath(value, folder);
  };
  if (reading.spec.has_exec()) {
    fix("workdir", *reading.spec.mutable_exec()->mutable_workdir());
    return SortProblems(reading.problems);
  }
  v1::Train& train = *reading.spec.mutable_train();
  if (!train.model().from().empty()) fix("model.from", *train.mutable_model()->mutable_from());
  if (train.model().has_custom()) {
    fix("model.library", *train.mutable_model()->mutable_custom()->mutable_library());
    fix("model.inventory", *train.mutable_model()->mutable_custom()->mutable_inventory());
  }
  if (train.has_data()) {
    fix("data.tokens", *train.mutable_data()->mutable_tokens());
    fix("data.images", *train.mutable_data()->mutable_images());
    fix("data.tensors", *train.mutable_data()->mutable_tensors());
    fix("data.validation", *train.mutable_data()->mutable_validation());
  }
  if (train.has_checkpoint()) {
    if (train.checkpoint().has_path()) {
      std::string& path = *train.mutable_checkpoint()->mutable_path();
      fix("checkpoint.path", path);
      path = WithoutMissingDetours(path);
    }
    fix("checkpoint.resume_from", *train.mutable_checkpoint()->mutable_resume_from());
  }
  if (train.has_offload()) fix("offload.to", *train.mutable_offload()->mutable_to());
  SortProblems(reading.problems);
}

}  // namespace muster::cli
