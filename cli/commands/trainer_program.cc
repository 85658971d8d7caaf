#include "cli/commands/trainer_program.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/commands/job_checkpoints.h"
#include "common/process/spawn.h"

namespace muster::cli {

namespace {

// Libraries of the program that the dynamic loader does not find, which would end it before its main(). Runs nothing of
// the program.
std::vector<std::string> MissingLibraries(const std::string& program) {
  std::vector<std::string> missing;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return missing;
  std::vector<std::string> environment = OwnEnvironment();
  environment.emplace_back("LD_TRACE_LOADED_OBJECTS=1");
  const absl::StatusOr<pid_t> pid =
      Spawn({.arguments = {program}, .environment = std::move(environment), .output = ends[1], .error = ends[1]});
  close(ends[1]);
  FILE* const output = fdopen(ends[0], "r");
  if (output == nullptr) close(ends[0]);
  char line[4096];
  while (output != nullptr && std::fgets(line, sizeof(line), output) != nullptr) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
    if (words.size() == 4 && words[1] == "=>" && words[2] == "not" && words[3] == "found") missing.push_back(words[0]);
  }
  if (output != nullptr) std::fclose(output);
  if (pid.ok()) {
    while (waitpid(*pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  return missing;
}

}  // namespace

absl::StatusOr<std::string> ModelFolder(const Invocation& invocation, const std::string& from) {
  struct stat found {};
  if (stat(from.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) return from;
  if (absl::StrContains(from, '/')) return absl::NotFoundError(absl::StrCat("there is no folder ", from));
  const absl::StatusOr<JobCheckpoints> checkpoints = FindJobCheckpoints(invocation, from);
  if (!checkpoints.ok()) return checkpoints.status();
  return NewestPublished(*checkpoints);
}

void AddLibrary(CLI::App* command, std::string& library) {
  command->add_option("--library", library, "a custom model's library; runs its code as your user")->type_name("FILE");
}

void AppendLibrary(const std::string& library, std::vector<std::string>& arguments) {
  if (!library.empty()) arguments.insert(arguments.end(), {"--library", library});
}

absl::Status BecomeTrainer(const Invocation& invocation, std::vector<std::string> arguments) {
  const std::string program = invocation.BinaryFolder() + "/muster-trainer";
  if (const std::vector<std::string> missing = MissingLibraries(program); !missing.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(program, " does not load: there is no ", absl::StrJoin(missing, ", "),
                     "; install what is missing, or set LD_LIBRARY_PATH to its folder; to check all programs: muster "
                     "doctor"));
  }
  arguments.insert(arguments.begin(), program);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  return absl::NotFoundError(absl::StrCat("cannot run ", program, ": ", std::strerror(errno),
                                          "; Muster's programs must be in one folder, or MUSTER_BIN_DIR names it"));
}

}  // namespace muster::cli
