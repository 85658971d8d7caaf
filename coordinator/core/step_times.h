// How long a generation's steps take, as its workers' reports show it: they come at most once a second, so quick steps
// are told several at a time, and count with their mean.
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
  // A generation begins, or its coordinator does: nothing is known.
  void Clear();
  // The generation has finished `step`; a lower one than before is nothing new.
  void Saw(uint64_t step, SteadyTime now);

  // The 99th percentile of the newest hundred reports; zero: there are none.
  absl::Duration Slowest() const;

 private:
  std::optional<uint64_t> step_;
  SteadyTime at_;
  std::deque<absl::Duration> recent_;
};

}  // namespace muster::core
