// Names that users give: of jobs, templates, projects and cohorts.
#pragma once

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace muster {

// [a-z0-9]([-a-z0-9]*[a-z0-9])?, at most 40 characters.
inline bool IsName(absl::string_view name) {
  if (name.empty() || name.size() > 40 || name.front() == '-' || name.back() == '-') return false;
  return std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-'; });
}

}  // namespace muster
