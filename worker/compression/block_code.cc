#include "worker/compression/block_code.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "worker/units/vector_math.h"

namespace muster::compression {
namespace {

using units::Magnitude;

// Adding 1.5 * 2^23 leaves no bits for a fraction, so that the sum is rounded to the nearest, of two the even one.
constexpr float kRound = 0x1.8p23f;

MUSTER_VECTOR float Largest(const float* values, size_t count) {
  uint32_t most = 0;
  for (size_t i = 0; i < count; ++i) most = std::max(most, Magnitude(values[i]));
  return std::bit_cast<float>(most);
}

// REQUIRES: scale is finite and above zero.
MUSTER_VECTOR void EncodeBlock(float* values, float scale, size_t count, int8_t* codes) {
  for (size_t i = 0; i < count; ++i) {
    const float code = std::min(std::max((values[i] / scale + kRound) - kRound, -127.0f), 127.0f);
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(code));
    values[i] -= code * scale;
  }
}

MUSTER_VECTOR void DecodeBlock(const int8_t* codes, float scale, size_t count, float* values) {
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(codes[i]) * scale;
}

MUSTER_VECTOR void AddBlock(const int8_t* codes, float scale, size_t count, float* values) {
  for (size_t i = 0; i < count; ++i) values[i] += static_cast<float>(codes[i]) * scale;
}

}  // namespace

void EncodeBlocks(absl::Span<float> values, absl::Span<float> scales, absl::Span<int8_t> codes) {
  const size_t block = values.size() / scales.size();
  for (size_t b = 0; b < scales.size(); ++b) {
    float* const of = values.data() + b * block;
    const float scale = scales[b] = Largest(of, block) / 127;
    if (scale > 0 && std::isfinite(scale)) {
      EncodeBlock(of, scale, block, codes.data() + b * block);
      continue;
    }
    std::fill_n(codes.data() + b * block, block, int8_t{0});
    for (size_t i = 0; i < block; ++i) of[i] -= 0 * scale;  // NaN where the scale is not finite, as it is decoded
  }
}

void DecodeBlocks(absl::Span<const float> scales, absl::Span<const int8_t> codes, absl::Span<float> values) {
  const size_t block = values.size() / scales.size();
  for (size_t b = 0; b < scales.size(); ++b) {
    DecodeBlock(codes.data() + b * block, scales[b], block, values.data() + b * block);
  }
}

void AddBlocks(absl::Span<const float> scales, absl::Span<const int8_t> codes, absl::Span<float> values) {
  const size_t block = values.size() / scales.size();
  for (size_t b = 0; b < scales.size(); ++b) {
    AddBlock(codes.data() + b * block, scales[b], block, values.data() + b * block);
  }
}

}  // namespace muster::compression
