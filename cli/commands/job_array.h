// Job arrays: one job file, submitted once for each combination of values.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/spec/reader.h"

namespace muster::cli {

// {"optimizer.lr=1e-3,3e-3", "seed=1,2"} gives {"optimizer.lr=1e-3", "seed=1"}, {"optimizer.lr=1e-3", "seed=2"}, ...:
// the last one varies fastest. A value that has commas is in brackets or quotes: "freeze=[h.0,h.1],[]".
// InvalidArgument: an entry without a path or with an empty value; a path, or a value of it, that is given twice; more
// than 1000 combinations.
absl::StatusOr<std::vector<std::vector<Assignment>>> Combinations(const std::vector<std::string>& arrays);

}  // namespace muster::cli
