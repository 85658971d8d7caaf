// What `submit` and `train` do once they have a spec.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/command.h"
#include "cli/output_format.h"
#include "cli/spec/reader.h"

namespace muster::cli {

struct SubmitOptions {
  bool follow = false;
  bool detach = false;
  bool dry_run = false;            // only print the plan
  std::vector<std::string> after;  // jobs, as a user names them
  Format format = Format::kTable;
};

// Adds -f, -d, --after, --dry-run and -o.
void AddSubmitFlags(CLI::App* command, SubmitOptions& options);

// Prints the plan (stderr), then the id (stdout) and the next commands, and follows the job on a terminal or with -f.
// Of several specs, all are checked before the first is submitted, and each comes after the same jobs; they need
// `detach`. InvalidArgument: the coordinator's errors with their locations.
absl::StatusOr<ExitCode> SubmitSpecs(const Invocation& invocation, const std::vector<Reading>& readings,
                                     const SubmitOptions& options);

// 128 random bits, hexadecimal.
std::string NewRequestId();

}  // namespace muster::cli
