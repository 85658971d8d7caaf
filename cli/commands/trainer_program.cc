#include "cli/commands/trainer_program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/job_checkpoints.h"

namespace muster::cli {

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
  arguments.insert(arguments.begin(), program);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  return absl::NotFoundError(absl::StrCat("cannot run ", program, ": ", std::strerror(errno),
                                          "; Muster's programs must be in one folder, or MUSTER_BIN_DIR names it"));
}

}  // namespace muster::cli
