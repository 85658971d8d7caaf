// Chooses which points of a metric series to drop when there are too many: each bucket of four consecutive points keeps
// the smallest and the largest loss, so a curve drawn from the rest has the same extremes (min/max thinning).
//
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace muster::store {

struct ThinPoint {
  uint64_t sequence = 0;
  std::optional<double> loss;             // +infinity for NaN: a diverged step is an extreme
  std::optional<double> validation_loss;  // sparse, so it is kept while it is rare in the window
};

// For each point of the window, true: it stays. The first and the last one always stay. About half of the window goes.
std::vector<bool> Thin(const std::vector<ThinPoint>& window);

}  // namespace muster::store
