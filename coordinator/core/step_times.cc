#include "coordinator/core/step_times.h"

#include <algorithm>
#include <vector>

namespace muster::core {
namespace {

constexpr size_t kKept = 100;

}  // namespace

void StepTimes::Clear() {
  step_.reset();
  recent_.clear();
}

void StepTimes::Saw(uint64_t step, SteadyTime now) {
  if (step_.has_value() && step <= *step_) return;
  if (step_.has_value()) {
    recent_.push_back((now - at_) / static_cast<int64_t>(step - *step_));
    if (recent_.size() > kKept) recent_.pop_front();
  }
  step_ = step;
  at_ = now;
}

absl::Duration StepTimes::Slowest() const {
  if (recent_.empty()) return absl::ZeroDuration();
  std::vector<absl::Duration> sorted(recent_.begin(), recent_.end());
  const size_t nearest_rank = (99 * sorted.size() + 99) / 100 - 1;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(nearest_rank), sorted.end());
  return sorted[nearest_rank];
}

}  // namespace muster::core
