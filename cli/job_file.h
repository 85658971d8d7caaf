// From a job file and flags to a spec that can be sent.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/spec/reader.h"

namespace muster::cli {

// `files`: at least one path, or "-" for standard input; later ones add to and override earlier ones. `sets`: the texts
// of --set. InvalidArgument with every problem.
absl::StatusOr<Reading> LoadJobFiles(const std::vector<std::string>& files, const std::vector<std::string>& sets,
                                     const std::vector<Assignment>& flags);
// The same from flags alone.
absl::StatusOr<Reading> LoadFlags(const std::vector<Assignment>& flags, const std::vector<std::string>& sets);

// What Submit or Plan said: its errors at their places when it refused the spec; other errors as they are.
absl::Status WithPlaces(const absl::Status& status, const SourceMap& sources);

}  // namespace muster::cli
