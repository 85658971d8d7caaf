#include "cli/check_job.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/spec/paths.h"
#include "data/file_pattern.h"
#include "data/token_file.h"

namespace muster::cli {
namespace {

// Whether the coordinator is on this machine, and every node of it, too: workers elsewhere have other files.
bool IsAllHere(Client& client) {
  if (!absl::StartsWith(client.connection().address, "unix:")) return false;
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  const absl::StatusOr<v1::ListNodesReply> nodes = client.ListNodes();
  return nodes.ok() && !nodes->nodes().empty() &&
         std::all_of(nodes->nodes().begin(), nodes->nodes().end(),
                     [&](const v1::Node& node) { return node.hostname() == name; });
}

// Why the file cannot be read; empty: it can.
std::string WhyUnreadable(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) {
    return absl::StrCat(errno == ENOENT ? "no such file" : std::strerror(errno), ": ", path);
  }
  if (S_ISDIR(found.st_mode)) return absl::StrCat("is a folder, not a file: ", path);
  return access(path.c_str(), R_OK) == 0 ? "" : absl::StrCat(std::strerror(errno), ": ", path);
}

std::string WhyNoData(const std::string& pattern) {
  const absl::StatusOr<std::vector<std::string>> files = data::FilesOf(pattern);
  if (!files.ok()) return absl::StrCat("no such files: ", pattern);
  for (const std::string& file : *files) {
    if (std::string why = WhyUnreadable(file); !why.empty()) return why;
  }
  return "";
}

// As the trainer opens it, but for what the model asks for: its context and vocabulary.
std::string WhyNoTokens(const std::string& pattern) {
  if (std::string why = WhyNoData(pattern); !why.empty()) return why;
  return std::string(data::TokenFile::Open(pattern, /*context=*/0).status().message());
}

std::string WhyNoFolder(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) {
    return absl::StrCat(errno == ENOENT ? "no such folder" : std::strerror(errno), ": ", path);
  }
  return S_ISDIR(found.st_mode) ? "" : absl::StrCat("is not a folder: ", path);
}

// The part of a path before its first placeholder, and of that what exists.
std::string ExistingPart(std::string path) {
  path = path.substr(0, path.find('{'));
  struct stat found {};
  while (path.size() > 1 && stat(path.c_str(), &found) != 0) {
    path = path.substr(0, std::max<size_t>(path.rfind('/'), 1));
  }
  return path;
}

std::string WhyNotCreatable(const std::string& path) {
  const std::string existing = ExistingPart(path);
  if (std::string why = WhyNoFolder(existing); !why.empty()) return why;
  struct statfs system {};
  if (statfs(existing.c_str(), &system) == 0 && (system.f_type == PROC_SUPER_MAGIC || system.f_type == SYSFS_MAGIC)) {
    return absl::StrCat("cannot create folders in ", existing, ", which the kernel provides");
  }
  if (access(existing.c_str(), W_OK | X_OK) == 0) return "";
  return absl::StrCat("cannot write to ", existing, ": ", std::strerror(errno));
}

}  // namespace

std::vector<Problem> PathProblems(const Reading& reading) {
  std::vector<Problem> problems;
  const v1::Train& train = reading.spec.train();
  const auto check = [&](const char* path, const std::string& value, std::string (*why)(const std::string&)) {
    if (value.empty()) return;
    if (std::string message = why(value); !message.empty()) {
      problems.push_back(Problem{reading.sources.Find(path), path, std::move(message), ""});
    }
  };
  check("workdir", reading.spec.exec().workdir(), WhyNoFolder);
  check("data.tokens", train.data().tokens(), WhyNoTokens);
  check("data.images", train.data().images(), WhyNoData);
  check("data.tensors", train.data().tensors(), WhyNoData);
  check("data.validation", train.data().validation(), train.data().tokens().empty() ? WhyNoData : WhyNoTokens);
  check("model.library", LibraryOf(reading.spec), WhyUnreadable);
  check("model.from", train.model().from(), WhyNoFolder);
  check("checkpoint.path", train.checkpoint().path(), WhyNotCreatable);
  if (!absl::StrContains(train.checkpoint().resume_from(), "{")) {
    check("checkpoint.resume_from", train.checkpoint().resume_from(), WhyNoFolder);
  }
  return problems;
}

std::vector<Problem> WithoutConsequences(std::vector<Problem> found, const std::vector<Problem>& known) {
  const auto follows = [&](const Problem& problem) {
    return std::any_of(known.begin(), known.end(), [&](const Problem& cause) {
      if (cause.path.empty() || problem.path.empty()) return false;  // about a whole file
      const bool misspelled = problem.path == cause.suggestion && absl::StartsWith(problem.message, "missing");
      return problem.path == cause.path || misspelled || absl::StartsWith(problem.path, cause.path + ".") ||
             absl::StartsWith(problem.path, cause.path + "[");
    });
  };
  found.erase(std::remove_if(found.begin(), found.end(), follows), found.end());
  return found;
}

absl::Status CheckJob(const Reading& reading, const absl::StatusOr<std::unique_ptr<Client>>& client) {
  std::vector<Problem> problems = reading.problems;
  const auto add = [&](std::vector<Problem> found) {
    for (Problem& problem : WithoutConsequences(std::move(found), problems)) problems.push_back(std::move(problem));
  };
  if (client.ok() && IsAllHere(**client)) add(PathProblems(reading));
  if (problems.empty()) return absl::OkStatus();
  // Of a file with broken syntax values are missing that it may have.
  if (client.ok() && reading.complete) {
    v1::PlanRequest request;
    *request.mutable_spec() = reading.spec;
    const absl::Status planned = (*client)->Plan(request).status();
    if (absl::IsInvalidArgument(planned)) add(Locate(SpecErrorsOf(planned), reading.sources));
  }
  SortProblems(problems);
  return ToStatus(problems);
}

}  // namespace muster::cli
