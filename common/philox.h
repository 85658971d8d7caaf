// Philox 4x32-10, a counter-based random number generator (Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", 2011): random bits as a pure function of a key and a counter, so any number of a sequence is there at once, on
// any machine and in any order. The same function as LibTorch's at::Philox4_32, where no LibTorch may be linked.
//
//   const std::array<uint32_t, 4> bits = Philox(seed, {sample, 0, kPurpose, 0});
#pragma once

#include <array>
#include <cstdint>

namespace muster {

// 128 random bits. Two calls that differ in any bit of `key` or `counter` are statistically independent.
constexpr std::array<uint32_t, 4> Philox(uint64_t key, std::array<uint32_t, 4> counter) {
  uint32_t low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xd2511f53} * counter[0], second = uint64_t{0xcd9e8d57} * counter[2];
    counter = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ low, static_cast<uint32_t>(second),
               static_cast<uint32_t>(first >> 32) ^ counter[3] ^ high, static_cast<uint32_t>(first)};
    low += 0x9e3779b9;
    high += 0xbb67ae85;
  }
  return counter;
}

}  // namespace muster
