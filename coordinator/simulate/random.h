// A small random generator (splitmix64, Steele et al. 2014), so that a seed gives the same numbers on every machine and
// with every standard library.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace muster::simulate {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // From [0, bound). REQUIRES: bound > 0.
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  // From [low, high].
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Below(static_cast<uint64_t>(high - low + 1)));
  }
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    return absl::Microseconds(Between(absl::ToInt64Microseconds(low), absl::ToInt64Microseconds(high)));
  }
  bool Percent(uint64_t chance) { return Below(100) < chance; }

 private:
  uint64_t state_;
};

}  // namespace muster::simulate
