// The files of a job's data: one path, or a pattern of shards.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::data {

// `pattern`: a path, or one with * ? [ ] as in a shell (a file of that very name goes first). In byte order; a path
// without those characters is returned as it is, whether there is such a file or not. NotFound: no file matches.
absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& pattern);

}  // namespace muster::data
