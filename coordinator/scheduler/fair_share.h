// Fair share by decayed use: slot-seconds of the past count the less, the longer ago they are (as Slurm's
// PriorityDecayHalfLife). Pure.
#pragma once

#include "absl/time/time.h"

namespace muster::scheduler {

// What is left of `used` slot-seconds after that time. An infinite half-life: all of it.
double Decayed(double used, absl::Duration passed, absl::Duration half_life);

// By which projects, and users within a project, are ordered: the lower, the earlier. REQUIRES: weight > 0.
inline double LoadOf(double used, double weight) { return used / weight; }

}  // namespace muster::scheduler
