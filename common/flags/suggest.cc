#include "common/flags/suggest.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace muster {
namespace {

// Longer words are not typos, and the distance is quadratic.
constexpr size_t kLongest = 64;

char Fold(char c) { return c == '-' ? '_' : absl::ascii_tolower(static_cast<unsigned char>(c)); }

}  // namespace

int EditDistance(absl::string_view a, absl::string_view b) {
  // Optimal string alignment, with three rows of the usual table.
  std::vector<int> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = Fold(a[i - 1]) == Fold(b[j - 1]);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && Fold(a[i - 1]) == Fold(b[j - 2]) && Fold(a[i - 2]) == Fold(b[j - 1])) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::string Nearest(absl::string_view word, const std::vector<std::string>& candidates) {
  if (word.empty() || word.size() > kLongest) return "";
  // "cos" of "cosine", if it is the beginning of nothing else.
  if (word.size() > 1) {
    const auto begins = [&](const std::string& candidate) {
      return EditDistance(word, candidate.substr(0, word.size())) == 0;
    };
    if (std::count_if(candidates.begin(), candidates.end(), begins) == 1) {
      return *std::find_if(candidates.begin(), candidates.end(), begins);
    }
  }
  std::string best;
  int best_distance = std::max<int>(1, static_cast<int>(word.size()) / 3) + 1;
  for (const std::string& candidate : candidates) {
    const int distance = EditDistance(word, candidate);
    // Replacing every letter of a short word is not a likely typo.
    if (distance < best_distance && distance < static_cast<int>(std::max(word.size(), candidate.size()))) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace muster
