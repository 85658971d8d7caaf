// Where a job may read and write on this machine.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/spec.pb.h"

namespace muster::agent {

struct PathRules {
  // Folders below which data, and checkpoints, must lie; none: anywhere.
  std::vector<std::string> data_roots, checkpoint_roots;
  // The daemon's own folders, which no job gets, whatever the roots are.
  std::vector<std::string> own;
};

// Follows symbolic links, of folders that are there; of what is not there yet the name counts. PermissionDenied: a path
// of the job lies outside; the message names the field, the path that it stands for, and the flag.
absl::Status CheckPaths(const Train& train, const PathRules& rules);

}  // namespace muster::agent
