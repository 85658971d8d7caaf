// The command by which this node runs the images of exec jobs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::agent {

// `setting`: auto, that is podman where `path` (as PATH) has it, with the host's network and shared memory, and `roots`
// mounted at their own paths; off; or a command, of words separated by spaces, for worker/exec/container.h to fill in.
// Returns its words. The program comes back with its folder, since the environment is the job's. Empty: this node runs
// no images. Errors: the command does not name {image}; its program is not in `path`.
absl::StatusOr<std::vector<std::string>> ContainerCommand(absl::string_view setting, absl::string_view path,
                                                          const std::vector<std::string>& roots);

}  // namespace muster::agent
