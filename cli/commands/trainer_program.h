// What the CLI does with a model it has the trainer do, which links the tensor library: its program takes this one's
// place.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/command.h"

namespace muster::cli {

// A folder is taken as it is; anything else is a job, whose checkpoints the coordinator knows. NotFound: neither.
// FailedPrecondition: a job without a checkpoint.
absl::StatusOr<std::string> ModelFolder(const Invocation& invocation, const std::string& from);

// Does not return if it succeeds. NotFound: the program is not there.
absl::Status BecomeTrainer(const Invocation& invocation, std::vector<std::string> arguments);

}  // namespace muster::cli
