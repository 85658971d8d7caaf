// "Did you mean ...?"
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

// Edits (insert, delete, replace, swap of neighbors) that turn one word into the other; '-' equals '_', case is
// ignored.
int EditDistance(absl::string_view a, absl::string_view b);

// The nearest candidate within a third of the word's length (at least one edit), or empty.
std::string Nearest(absl::string_view word, const std::vector<std::string>& candidates);

}  // namespace muster
