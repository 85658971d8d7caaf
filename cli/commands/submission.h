// What `submit` and `train` share once they have a spec.
#pragma once

#include "absl/status/statusor.h"
#include "cli/command.h"
#include "cli/output_format.h"
#include "cli/spec/reader.h"

namespace muster::cli {

struct SubmitOptions {
  bool follow = false;
  bool detach = false;
  bool dry_run = false;  // only the plan
  Format format = Format::kTable;
};

// -f, -d, --dry-run and -o.
void AddSubmitFlags(CLI::App* command, SubmitOptions& options);

// Prints the plan (stderr), then the id (stdout) and the next commands, and follows on a terminal or with -f.
// InvalidArgument: the coordinator's errors at their places.
absl::StatusOr<ExitCode> SubmitSpec(const Invocation& invocation, const Reading& reading, const SubmitOptions& options);

// 128 random bits, hexadecimal.
std::string NewRequestId();

}  // namespace muster::cli
