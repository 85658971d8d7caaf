// The uses of random numbers in the order and the contents of samples: each has its own sequence for the same seed.
#pragma once

#include <array>
#include <cstdint>

#include "common/philox.h"

namespace muster::data {

// Resumed jobs of other versions depend on the values.
enum class RandomPurpose : uint32_t { kOrder = 1, kCrop = 2, kSplit = 3 };

inline std::array<uint32_t, 4> RandomBits(uint64_t seed, uint64_t index, RandomPurpose purpose) {
  return Philox(seed,
                {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(purpose), 0});
}

}  // namespace muster::data
