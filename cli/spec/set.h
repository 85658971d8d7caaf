// Flags that set one path of a spec.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/spec/reader.h"

namespace muster::cli {

// "optimizer.lr=3e-4" of --set. InvalidArgument without a path or a `=`.
absl::StatusOr<Assignment> ParseAssignment(absl::string_view text);

// Puts the value at its path of the tree, creating the maps on the way; whether the path exists in a spec is the
// reader's to say. Notes a problem when the way leads through something that is no map.
void Assign(const Assignment& assignment, Node& root, std::vector<Problem>& problems);

}  // namespace muster::cli
