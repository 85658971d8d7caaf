#include "common/clock.h"

#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace muster {

std::string Difference(absl::Time theirs, absl::Time ours) {
  return absl::StrCat(absl::FormatDuration(absl::Trunc(absl::AbsDuration(theirs - ours), absl::Seconds(1))),
                      theirs > ours ? " ahead of" : " behind");
}

Now RealClock::Read() const {
  timespec steady{};
  clock_gettime(CLOCK_BOOTTIME, &steady);
  return Now{SteadyTime::FromNanoseconds(int64_t{steady.tv_sec} * 1'000'000'000 + steady.tv_nsec), absl::Now()};
}

}  // namespace muster
