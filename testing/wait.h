// Waiting for a condition in tests.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace muster {

// Generous, because tests also run on loaded machines. It bounds hangs; it is no benchmark.
inline constexpr absl::Duration kTestPatience = absl::Minutes(1);

// Polls until `condition()` is true; false if it is not within `patience`.
template <typename Condition>
bool Eventually(const Condition& condition, absl::Duration patience = kTestPatience,
                absl::Duration interval = absl::Milliseconds(10)) {
  const absl::Time deadline = absl::Now() + patience;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(interval);
  }
  return true;
}

}  // namespace muster
