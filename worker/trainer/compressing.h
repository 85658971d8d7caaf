// Measures what compressing a sum of gradients takes of a rank's core, for predictions (strategies/hardware.h).
#pragma once

#include <functional>

#include "absl/time/time.h"
#include "strategies/hardware.h"
#include "worker/collectives/links.h"

namespace muster::trainer {

// The least time of sums of a quarter of a million elements with default settings on a CPU, without what travels, with
// the calling thread's number of threads: other processes that run meanwhile on its cores only add to the time.
// `budget` is for all kinds together; each is compressed at least four times, and the first time does not count. 0: the
// measurement failed; the log says why. `now`: a clock that does not go back.
strategies::Compressing MeasureCompressing(absl::Duration budget,
                                           const std::function<absl::Duration()>& now = collectives::SteadyNow);

}  // namespace muster::trainer
