// Flags that set one path of a spec.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/spec/reader.h"

namespace muster::cli {

// Parses "optimizer.lr=3e-4" of --set, or of another flag. InvalidArgument without a path or a `=`.
absl::StatusOr<Assignment> ParseAssignment(absl::string_view text, absl::string_view flag = "--set");

// Sets the value at its path of the tree, creating maps on the way; the reader checks whether the path exists in a
// spec. Adds a problem if a parent is not a map.
void Assign(const Assignment& assignment, Node& root, std::vector<Problem>& problems);

}  // namespace muster::cli
