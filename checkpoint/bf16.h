// bf16 in memory. Files hold its elements as fp32, which has them all, so that what was written reads back bit by bit.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "checkpoint/checkpoint.h"

namespace muster::checkpoint {

inline float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// To the nearest, ties to even; NaN stays NaN.
inline uint16_t ToBf16(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Fills run.bf16 by `read`, which fills runs of fp32: a part at a time. Errors of `read`.
template <typename F>
absl::Status ReadAsBf16(const TensorRun& run, F&& read) {
  constexpr size_t kAtOnce = 1 << 18;
  std::vector<float> wide;
  for (size_t begin = 0; begin < run.bf16.size(); begin += wide.size()) {
    wide.resize(std::min(kAtOnce, run.bf16.size() - begin));
    const TensorRun part{run.name, run.shape, run.begin + begin, absl::MakeSpan(wide), {}, run.box};
    if (absl::Status status = read(part); !status.ok()) return status;
    std::transform(wide.begin(), wide.end(), run.bf16.begin() + static_cast<std::ptrdiff_t>(begin), ToBf16);
  }
  return absl::OkStatus();
}

}  // namespace muster::checkpoint
