// Starts the programs of the daemons and of `muster local`: shims, checks, commands for notices, the daemons
// themselves.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster {

struct Program {
  enum class Leads { kNothing, kGroup, kSession };

  std::vector<std::string> arguments;    // the first one is its path
  std::vector<std::string> environment;  // "NAME=value"
  // Descriptors that become its standard ones. -1: /dev/null as its input, this process's own as the others.
  int input = -1, output = -1, error = -1;
  Leads leads = Leads::kNothing;  // a process group, or a session, of its own
};

// This process's environment.
std::vector<std::string> OwnEnvironment();

// A child with no other descriptors than the three standard ones, and no signal ignored or blocked. The error of
// posix_spawn.
absl::StatusOr<pid_t> Spawn(Program program);

}  // namespace muster
