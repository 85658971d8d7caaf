// What `muster model inspect` prints of a library with a model.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::trainer {

struct Inspected {
  std::string json;     // Custom of proto/spec.proto, which a job file names as model.inventory
  std::string summary;  // a table: lines about the model and its units
};

// `options`: NAME=VALUE. Runs the library's code. InvalidArgument: an option without a "=". Others as
// plugins::LoadStructure and plugins::Measure.
absl::StatusOr<Inspected> Inspect(const std::string& library, const std::vector<std::string>& options);

}  // namespace muster::trainer
