// Commands that need the tensor library run in the trainer: its program replaces this process (exec).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/command.h"

namespace muster::cli {

// Takes a folder as it is; anything else is a job, and gives the folder of its newest published checkpoint. NotFound:
// neither. Other errors as FindJobCheckpoints and NewestPublished (job_checkpoints.h).
absl::StatusOr<std::string> ModelFolder(const Invocation& invocation, const std::string& from);

// --library of commands that compute with a model.
void AddLibrary(CLI::App* command, std::string& library);
void AppendLibrary(const std::string& library, std::vector<std::string>& arguments);

// Does not return on success. NotFound: the program is missing. FailedPrecondition: a library that it links to is.
absl::Status BecomeTrainer(const Invocation& invocation, std::vector<std::string> arguments);

}  // namespace muster::cli
