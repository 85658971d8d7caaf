#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/doctor/checks.h"
#include "cli/output/format.h"
#include "common/version.h"

extern char** environ;

namespace muster::cli {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);  // LibTorch from a cold disk
constexpr size_t kMaxOutput = 4096;

struct Answer {
  int code = -1;
  std::string text;  // stdout and stderr
};

// Reads until the end of the output or the deadline.
std::string ReadAll(int descriptor, absl::Time deadline) {
  std::string text;
  char buffer[512];
  while (text.size() < kMaxOutput) {
    pollfd wait = {descriptor, POLLIN, 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left <= 0 || poll(&wait, 1, static_cast<int>(left)) <= 0) break;
    const ssize_t count = read(descriptor, buffer, sizeof(buffer));
    if (count <= 0) break;
    text.append(buffer, count);
  }
  return text;
}

Answer AskVersion(const std::string& program) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {-1, std::strerror(errno)};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
  std::string argument = "--version";
  std::string name = program;
  char* const argv[] = {name.data(), argument.data(), nullptr};
  pid_t pid = 0;
  const int error = posix_spawn(&pid, program.c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return {-1, std::strerror(error)};
  }
  Answer answer;
  const absl::Time deadline = absl::Now() + kPatience;
  answer.text = ReadAll(ends[0], deadline);
  close(ends[0]);
  if (absl::Now() >= deadline) {
    kill(pid, SIGKILL);
    answer.text = absl::StrCat("no answer within ", absl::FormatDuration(kPatience));
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  answer.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return answer;
}

Finding CheckProgram(const std::string& path, const std::string& name) {
  const Answer answer = AskVersion(path);
  const std::string said = OneLine(absl::StripAsciiWhitespace(answer.text.substr(0, answer.text.find('\n'))));
  if (answer.code != 0 && absl::StrContains(said, "shared libraries")) {
    return {"programs", Severity::kProblem, absl::StrCat(name, " does not load: ", said),
            "install the library that it names, or set LD_LIBRARY_PATH to its folder"};
  }
  // The shim has no options; its refusal shows that it runs.
  if (name == "muster-step" && answer.code > 0 && answer.code < 126) return {"programs", Severity::kOk, name, ""};
  if (answer.code != 0) {
    return {"programs", Severity::kProblem, absl::StrCat(name, " does not run: ", said), "rebuild or reinstall it"};
  }
  if (said != kVersion) {
    return {"programs", Severity::kProblem, absl::StrCat(name, " is version ", said, ", muster is ", kVersion),
            "install all programs of one version"};
  }
  return {"programs", Severity::kOk, absl::StrCat(name, " ", said, name == "muster-trainer" ? ", LibTorch loads" : ""),
          ""};
}

}  // namespace

std::vector<Finding> CheckPrograms(const std::string& folder) {
  std::vector<Finding> findings;
  std::vector<std::string> missing;
  for (const char* name : {"muster-coordinator", "muster-worker", "muster-step", "muster-exec", "muster-trainer"}) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (access(path.c_str(), X_OK) != 0) {
      missing.emplace_back(name);
    } else {
      findings.push_back(CheckProgram(path, name));
    }
  }
  if (!missing.empty()) {
    findings.push_back({"programs", Severity::kProblem,
                        absl::StrCat("not in ", folder, ": ", absl::StrJoin(missing, ", ")),
                        "install them beside muster, or set MUSTER_BIN_DIR to their folder"});
  }
  return findings;
}

}  // namespace muster::cli
