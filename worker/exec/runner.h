// Runs one rank of an exec job: meets the other ranks to agree on MASTER_ADDR and MASTER_PORT, starts the user's
// program, and is to its worker what a trainer is: records, progress, stops.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/exec/program.h"
#include "worker/trainer/link.h"

namespace muster::exec {

struct RunOptions {
  trainer::Link::Options link;
  std::string rank_dir;
  std::vector<std::string> container_command;  // how an image is run (container.h)
  std::vector<std::string> inherited;          // this process's environment
};

// How the rank ended: `code`, or `signal` where the program died of one.
struct Outcome {
  int code = 0;
  int signal = 0;
};

// `terminated`: SIGTERM has come, because the worker cannot reach this process otherwise; polled several times a
// second. After a stop that was asked for, the outcome is code 0, whatever the program makes of its signals. Errors,
// which are in the rank's records, too: the program could not be started; the ranks did not meet.
absl::StatusOr<Outcome> RunRank(const RunOptions& options, Program program, const std::function<bool()>& terminated);

}  // namespace muster::exec
