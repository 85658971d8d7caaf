#include "coordinator/scheduler/fair_share.h"

#include <cmath>

namespace muster::scheduler {

double Decayed(double used, absl::Duration passed, absl::Duration half_life) {
  if (passed <= absl::ZeroDuration() || half_life == absl::InfiniteDuration()) return used;
  return used * std::exp2(-absl::FDivDuration(passed, half_life));
}

}  // namespace muster::scheduler
