// Starts the trainer as a child of the shim.
#pragma once

#include <sys/types.h>

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rundir/rundir.h"

namespace muster::step {

struct Trainer {
  pid_t pid = 0;    // leader of a process group of its own
  int output = -1;  // read end of its stdout and stderr, non-blocking; the caller closes it
};

// Limits that shim and trainer share: no core files, as many open files as allowed, no new privileges.
void RestrictSelf();

// Forks; the child dies with the shim (PR_SET_PDEATHSIG) and runs `start` only after `before_exec(pid)` returned OK.
// With start.user it becomes that user for good, umask included, before it enters its folder and runs the program.
// Errors: of before_exec; else of the child's change of user, chdir or exec, with the kernel's reason. Then no child is
// left.
// Single-threaded callers only.
absl::StatusOr<Trainer> Launch(const rundir::Start& start, const std::function<absl::Status(pid_t)>& before_exec);

}  // namespace muster::step
