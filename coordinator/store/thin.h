// Which points of a metric series go when there are too many: in each bucket of four consecutive points the smallest
// and the largest loss stay, so that a curve drawn from what is left has the same extremes (min/max thinning).
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
  std::optional<double> validation_loss;  // sparse, so it stays as long as it is rare in the window
};

// For each point of the window, true: it stays. The first and the last one always do. About half of the window goes.
std::vector<bool> Thin(const std::vector<ThinPoint>& window);

}  // namespace muster::store
