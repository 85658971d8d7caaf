// The mean time of a job's recent steps, from which the time that is left of it follows. Pure.
#pragma once

#include <cmath>
#include <cstdint>

namespace muster {

class StepTime {
 public:
  // A step that took `seconds`. Steps that are done again, after a fault, start a new mean. The first step of a mean
  // also warms up, so it counts only until there is a second one.
  void Add(uint64_t step, double seconds) {
    if (!(seconds > 0) || !std::isfinite(seconds)) return;
    if (step <= step_) added_ = 0;
    if (added_ <= 1) steps_ = seconds_ = 0;
    step_ = step;
    ++added_;
    // A step's weight falls by the factor e with each minute of steps after it.
    const double kept = std::exp(-seconds / kWindowSeconds);
    steps_ = steps_ * kept + 1;
    seconds_ = seconds_ * kept + seconds;
  }

  // 0: of no step so far.
  double mean_seconds() const { return steps_ > 0 ? seconds_ / steps_ : 0; }

 private:
  static constexpr double kWindowSeconds = 60;

  uint64_t step_ = 0, added_ = 0;
  double steps_ = 0, seconds_ = 0;  // weighted sums
};

}  // namespace muster
