// Starts the programs of this daemon: the shim of a rank, and the trainer that checks the machine.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::agent {

struct Program {
  std::vector<std::string> arguments;    // the first one is its path
  std::vector<std::string> environment;  // "NAME=value"
  int output = -1;                       // the descriptor that is its standard output; -1: this process's
  bool leads_group = false;              // of processes, so that all of them can be killed
};

// This process's environment.
std::vector<std::string> OwnEnvironment();

// A child with /dev/null as its standard input, no other descriptors than the three standard ones, and no signal
// ignored or blocked. The error of posix_spawn.
absl::StatusOr<pid_t> Spawn(Program program);

}  // namespace muster::agent
