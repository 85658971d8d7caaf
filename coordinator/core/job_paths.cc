#include "coordinator/core/job_paths.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace muster::core {

std::optional<PlaceholderError> CheckPlaceholders(const std::string& path) {
  constexpr char kKnown[] = "{name} (the job's name) and {job} (its id) can stand in this path";
  for (size_t at = 0; (at = path.find_first_of("{}", at)) != std::string::npos;) {
    const size_t end = path.find('}', at);
    if (path[at] == '}' || end == std::string::npos) {
      return PlaceholderError{absl::StrCat("has a brace without its other half: ", kKnown), ""};
    }
    const std::string placeholder = path.substr(at, end + 1 - at);
    if (placeholder != "{name}" && placeholder != "{job}") {
      const std::string lower = absl::AsciiStrToLower(placeholder);
      const bool name = absl::StartsWith(lower, "{n") || absl::StrContains(lower, "name");
      return PlaceholderError{absl::StrCat("unknown placeholder ", placeholder, ": ", kKnown),
                              name ? "{name}" : "{job}"};
    }
    at = end + 1;
  }
  return std::nullopt;
}

std::string ExpandPlaceholders(const std::string& path, const std::string& name, const std::string& job) {
  return absl::StrReplaceAll(path, {{"{name}", name}, {"{job}", job}});
}

void ExpandPlaceholders(const JobId& job, JobSpec& spec) {
  if (!spec.train().has_checkpoint()) return;
  Checkpoint& checkpoint = *spec.mutable_train()->mutable_checkpoint();
  if (checkpoint.has_path()) {
    checkpoint.set_path(ExpandPlaceholders(checkpoint.path(), spec.name(), job.value()));
  }
  checkpoint.set_resume_from(ExpandPlaceholders(checkpoint.resume_from(), spec.name(), job.value()));
}

std::string NormalizedPath(const std::string& path) {
  std::vector<std::string> parts;
  for (const absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    if (part == ".") continue;
    if (part != "..") {
      parts.emplace_back(part);
    } else if (!parts.empty()) {
      parts.pop_back();
    }
  }
  return absl::StrCat("/", absl::StrJoin(parts, "/"));
}

}  // namespace muster::core
