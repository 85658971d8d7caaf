#include "coordinator/store/thin.h"

#include <cstddef>

namespace muster::store {
namespace {

constexpr size_t kBucket = 4;

// Keeps two of each whole bucket of the points at `indices`: the smallest and the largest value.
void KeepExtremes(const std::vector<size_t>& indices, const std::vector<std::optional<double>>& values,
                  std::vector<bool>& keep) {
  size_t begin = 0;
  for (; begin + kBucket <= indices.size(); begin += kBucket) {
    size_t low = begin, high = begin;
    for (size_t i = begin; i < begin + kBucket; ++i) {
      const auto& value = values[indices[i]];
      if (!value.has_value()) continue;
      if (!values[indices[low]].has_value() || *value < *values[indices[low]]) low = i;
      if (!values[indices[high]].has_value() || *value > *values[indices[high]]) high = i;
    }
    if (low == high) high = low == begin ? begin + kBucket / 2 : begin;  // all equal, or none measured
    keep[indices[low]] = keep[indices[high]] = true;
  }
  for (; begin < indices.size(); ++begin) keep[indices[begin]] = true;
}

}  // namespace

std::vector<bool> Thin(const std::vector<ThinPoint>& window) {
  std::vector<bool> keep(window.size(), false);
  if (window.empty()) return keep;
  std::vector<size_t> training, validation;
  std::vector<std::optional<double>> losses, validation_losses;
  for (size_t i = 0; i < window.size(); ++i) {
    (window[i].validation_loss.has_value() ? validation : training).push_back(i);
    losses.push_back(window[i].loss);
    validation_losses.push_back(window[i].validation_loss);
  }
  KeepExtremes(training, losses, keep);
  if (validation.size() > window.size() / 2) {
    KeepExtremes(validation, validation_losses, keep);
  } else {
    for (const size_t i : validation) keep[i] = true;
  }
  keep.front() = keep.back() = true;
  return keep;
}

}  // namespace muster::store
