// The part of `muster data inspect` that is about image files.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"

namespace muster::cli {

// Appends what the image file `file` holds to both forms of the output. Errors as data::InspectImages.
absl::Status AppendImages(const std::string& file, nlohmann::ordered_json& trees, std::string& text);

}  // namespace muster::cli
