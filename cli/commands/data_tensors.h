// The part of `muster data inspect` that is about files of named tensors.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"

namespace muster::cli {

// Whether the files of `pattern` are safetensors files by their names.
bool HoldsTensors(const std::string& pattern);

// Appends what they hold to both forms of the output. Errors as checkpoint::SafetensorsFile::Open.
absl::Status AppendTensors(const std::string& pattern, nlohmann::ordered_json& trees, std::string& text);

}  // namespace muster::cli
