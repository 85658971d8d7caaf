// The user's program: a child process that is made before this process has threads, and gets its command later.
//
//   absl::StatusOr<Program> program = Program::Fork();      // first thing in main: gRPC and a later fork do not mix
//   ...
//   absl::Status started = program->Start({argv, environment, folder});
//   program->Signal(SIGTERM);
//   std::optional<int> status = program->WaitFor(absl::Milliseconds(50));
//
// The child dies with this process. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace muster::exec {

class Program {
 public:
  struct Command {
    std::vector<std::string> argv;         // argv[0] without a slash is looked up in PATH of `environment`
    std::vector<std::string> environment;  // "NAME=value"
    std::string folder;
  };

  // REQUIRES: the process has one thread.
  static absl::StatusOr<Program> Fork();
  Program(Program&& other) noexcept;
  Program& operator=(Program&&) = delete;
  ~Program();  // kills a child that has not ended

  // Returns when the program runs. NotFound: there is no such program, interpreter or folder. PermissionDenied: it may
  // not be run or entered. ResourceExhausted: the arguments and the environment are too large.
  absl::Status Start(const Command& command);

  // The status of waitpid, once it has ended.
  std::optional<int> WaitFor(absl::Duration at_most);
  // To the program alone, not to its children: those of a data loader must not end before it has saved its state.
  void Signal(int signal) const;
  pid_t pid() const { return pid_; }

 private:
  Program(pid_t pid, int pidfd, int command, int failure)
      : pid_(pid), pidfd_(pidfd), command_(command), failure_(failure) {}

  pid_t pid_ = -1;  // -1: it has been reaped
  int pidfd_ = -1;
  int command_ = -1;  // pipe to the child: what to run
  int failure_ = -1;  // pipe from it: why it cannot; closed by exec
};

}  // namespace muster::exec
