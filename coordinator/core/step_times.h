// Durations of a generation's steps, from its workers' reports. Reports come at most once a second, so several quick
// steps arrive at once and count with their mean.
//
// Pure, not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/time/time.h"
#include "common/clock.h"

namespace muster::core {

class StepTimes {
 public:
  // Forgets everything: a new generation, or a restarted coordinator.
  void Clear();
  // The generation has finished `step`. Steps that are not higher than the last one are ignored.
  void Saw(uint64_t step, SteadyTime now);

  // The 99th percentile of the newest hundred reports; zero if there are none.
  absl::Duration Slowest() const;

 private:
  std::optional<uint64_t> step_;
  SteadyTime at_;
  std::deque<absl::Duration> recent_;
};

}  // namespace muster::core
