#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace muster {

// The file that `program` names: itself if it has a slash, else the first that may be run in an absolute folder of
// `path`, which is written as PATH is. Empty: there is none.
std::string FindProgram(absl::string_view program, absl::string_view path);

}  // namespace muster
