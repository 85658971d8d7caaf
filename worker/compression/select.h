// Which elements of a range travel.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace muster::compression {

// The elements that a threshold is estimated from: every `stride`-th, from `first` on, which differs from step to step.
struct Sample {
  int64_t first = 0, stride = 1, size = 0;
  // The place, from 0 by falling magnitude, of that which about `most` of `elements` reach.
  int64_t PlaceOf(double most, int64_t elements) const;
};
Sample SampleOf(int64_t elements, uint64_t step);

class Selector {
 public:
  // Adds `added` to `values`, of as many elements, and finds the indices of the `most` sums of largest magnitude, of
  // equally large ones the first; ascending. NaN counts as larger than infinity. `most` is at most their number.
  void AddAndFind(absl::Span<const float> added, absl::Span<float> values, int64_t most, uint64_t step,
                  std::vector<int32_t>& indices);
  // The same of those that reach a threshold, which as large a part of a sample reaches: fewer, where the sample
  // misled.
  void AddAndSample(absl::Span<const float> added, absl::Span<float> values, int64_t most, uint64_t step,
                    std::vector<int32_t>& indices);

 private:
  uint32_t Threshold(absl::Span<const float> added, absl::Span<const float> values, double most, uint64_t step);
  void KeepLargest(absl::Span<const float> values, int64_t most, std::vector<int32_t>& indices);

  std::vector<uint32_t> magnitudes_;  // of a sample, or of candidates
  std::vector<uint32_t> marks_;       // of each block, a bit for each candidate
};

}  // namespace muster::compression
