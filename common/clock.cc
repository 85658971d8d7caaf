#include "common/clock.h"

#include <ctime>

#include "absl/time/clock.h"

namespace muster {

Now RealClock::Read() const {
  timespec steady{};
  clock_gettime(CLOCK_BOOTTIME, &steady);
  return Now{SteadyTime::FromNanoseconds(int64_t{steady.tv_sec} * 1'000'000'000 + steady.tv_nsec), absl::Now()};
}

}  // namespace muster
