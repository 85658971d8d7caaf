#include "common/process/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace muster {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

std::vector<std::string> OwnEnvironment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  return variables;
}

absl::StatusOr<pid_t> Spawn(Program program) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  const auto destroyed = absl::MakeCleanup([&] {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  });
  if (program.input >= 0) {
    posix_spawn_file_actions_adddup2(&actions, program.input, STDIN_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  }
  if (program.output >= 0) posix_spawn_file_actions_adddup2(&actions, program.output, STDOUT_FILENO);
  if (program.error >= 0) posix_spawn_file_actions_adddup2(&actions, program.error, STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);  // also what a library forgot to mark
  sigset_t all, none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  int flags = POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK;
  if (program.leads == Program::Leads::kGroup) flags |= POSIX_SPAWN_SETPGROUP;
  if (program.leads == Program::Leads::kSession) flags |= POSIX_SPAWN_SETSID;
  posix_spawnattr_setflags(&attributes, static_cast<short>(flags));

  const std::vector<char*> arguments = Pointers(program.arguments), environment = Pointers(program.environment);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, program.arguments[0].c_str(), &actions, &attributes, arguments.data(), environment.data());
  if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot run ", program.arguments[0]));
  return pid;
}

}  // namespace muster
