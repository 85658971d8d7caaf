// YAML, by the same rules as the reader's.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "proto/spec.pb.h"

namespace muster::cli {

// Block style, two spaces, ends with a newline. Quotes a string that would read as something else if it were plain.
std::string ToYaml(const nlohmann::ordered_json& tree);

// A whole spec as YAML: its SpecTree without `template`, since what that says is in it.
std::string WriteSpec(v1::JobSpec spec);

}  // namespace muster::cli
