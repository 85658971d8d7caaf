#include "worker/compression/sparse_code.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "strategies/compression.h"

namespace muster::compression {
namespace {

constexpr int64_t kScaled = SparseLayout::kScaled;

int64_t WordsFor(int64_t bits) { return (bits + 31) / 32; }

uint16_t ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (value != value) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
float FromBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

}  // namespace

SparseLayout::SparseLayout(int64_t elements, int64_t most, SentValues values)
    : lower(strategies::LowerBits(elements, most)) {
  upper_at = 1 + WordsFor(most * lower);
  values_at = upper_at + WordsFor(most + (elements >> lower) + 1);
  codes_at = values_at + (values == SENT_VALUES_INT8 ? (most + kScaled - 1) / kScaled : 0);
  const int64_t in_a_word = values == SENT_VALUES_BF16 ? 2 : values == SENT_VALUES_INT8 ? 4 : 1;
  words = codes_at + (most + in_a_word - 1) / in_a_word;
}

void SparseCode::Encode(Sparse& sparse, absl::Span<uint32_t> message) const {
  std::fill(message.begin(), message.end(), 0);
  const size_t count = sparse.indices.size();
  message[0] = static_cast<uint32_t>(count);
  uint32_t* const lower = message.data() + 1;
  uint32_t* const upper = message.data() + layout_.upper_at;
  const uint32_t mask = (uint32_t{1} << layout_.lower) - 1;
  for (size_t i = 0; i < count; ++i) {
    const auto index = static_cast<uint32_t>(sparse.indices[i]);
    if (layout_.lower > 0) {
      const uint64_t bit = i * static_cast<uint64_t>(layout_.lower);
      const uint64_t shifted = static_cast<uint64_t>(index & mask) << (bit % 32);
      lower[bit / 32] |= static_cast<uint32_t>(shifted);
      if (shifted >> 32 != 0) lower[bit / 32 + 1] |= static_cast<uint32_t>(shifted >> 32);
    }
    const uint64_t place = (index >> layout_.lower) + i;
    upper[place / 32] |= uint32_t{1} << (place % 32);
  }
  uint32_t* const values = message.data() + layout_.values_at;
  if (values_ == SENT_VALUES_BF16) {
    for (size_t i = 0; i < count; ++i) {
      const uint16_t bits = ToBf16(sparse.values[i]);
      std::memcpy(reinterpret_cast<char*>(values) + 2 * i, &bits, 2);
      sparse.values[i] = FromBf16(bits);
    }
  } else if (values_ == SENT_VALUES_INT8) {
    auto* const codes = reinterpret_cast<int8_t*>(message.data() + layout_.codes_at);
    for (size_t begin = 0; begin < count; begin += kScaled) {
      const size_t end = std::min(count, begin + kScaled);
      float most = 0;
      for (size_t i = begin; i < end; ++i) {
        const float magnitude = std::abs(sparse.values[i]);
        most = magnitude <= most ? most : magnitude;  // NaN stays
        if (std::isnan(most)) break;
      }
      const float scale = most / 127;
      std::memcpy(values + begin / kScaled, &scale, 4);
      for (size_t i = begin; i < end; ++i) {
        const float code = std::isfinite(scale) && scale > 0 ? std::nearbyint(sparse.values[i] / scale) : 0;
        codes[i] = static_cast<int8_t>(std::clamp(code, -127.0f, 127.0f));
        sparse.values[i] = scale * static_cast<float>(codes[i]);
      }
    }
  } else {
    std::memcpy(values, sparse.values.data(), 4 * count);
  }
}

void SparseCode::Decode(absl::Span<const uint32_t> message, Sparse& sparse) const {
  const size_t count = message[0];
  sparse.indices.resize(count), sparse.values.resize(count);
  const uint32_t* const lower = message.data() + 1;
  const uint32_t* const upper = message.data() + layout_.upper_at;
  const uint32_t mask = (uint32_t{1} << layout_.lower) - 1;
  size_t i = 0;
  for (uint32_t word = 0; i < count; ++word) {
    for (uint32_t bits = upper[word]; bits != 0; bits &= bits - 1, ++i) {
      const uint32_t high = 32 * word + static_cast<uint32_t>(std::countr_zero(bits)) - static_cast<uint32_t>(i);
      uint32_t low = 0;
      if (layout_.lower > 0) {
        const uint64_t bit = i * static_cast<uint64_t>(layout_.lower);
        uint64_t two = lower[bit / 32];
        if (bit % 32 + static_cast<uint64_t>(layout_.lower) > 32)
          two |= static_cast<uint64_t>(lower[bit / 32 + 1]) << 32;
        low = static_cast<uint32_t>(two >> (bit % 32)) & mask;
      }
      sparse.indices[i] = static_cast<int32_t>((high << layout_.lower) | low);
    }
  }
  const uint32_t* const values = message.data() + layout_.values_at;
  if (values_ == SENT_VALUES_BF16) {
    for (size_t v = 0; v < count; ++v) {
      uint16_t bits = 0;
      std::memcpy(&bits, reinterpret_cast<const char*>(values) + 2 * v, 2);
      sparse.values[v] = FromBf16(bits);
    }
  } else if (values_ == SENT_VALUES_INT8) {
    const auto* const codes = reinterpret_cast<const int8_t*>(message.data() + layout_.codes_at);
    for (size_t v = 0; v < count; ++v) {
      float scale = 0;
      std::memcpy(&scale, values + v / kScaled, 4);
      sparse.values[v] = scale * static_cast<float>(codes[v]);
    }
  } else {
    std::memcpy(sparse.values.data(), values, 4 * count);
  }
}

}  // namespace muster::compression
