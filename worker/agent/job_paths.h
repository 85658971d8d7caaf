// Where a job may read and write on this machine.
#pragma once

#include <functional>
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

using LookingAt = std::function<void(const char* field, const std::string& path)>;

// Follows symbolic links that stay below a root. What exists of a path is opened there (common/file/beneath.h), so that
// links that change meanwhile do not count. The trainer, which gets the same roots, opens its files likewise.
// PermissionDenied: a path of the job lies outside, or in a folder of a daemon of Muster, also another one's on this
// machine, known by its lock; the message names the field, the path that it stands for, and the flag. `looking_at`, if
// any, is called before each path, whose file system may not answer.
absl::Status CheckPaths(const Train& train, const PathRules& rules, const LookingAt& looking_at = nullptr);

// InvalidArgument: a folder of the daemon lies below a root, so that a job could be led there by a link.
absl::Status CheckRules(const PathRules& rules);

}  // namespace muster::agent
