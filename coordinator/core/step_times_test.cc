#include "coordinator/core/step_times.h"

#include <gtest/gtest.h>

namespace muster::core {
namespace {

TEST(StepTimes, TheSlowestOfAHundredButOne) {
  StepTimes times;
  SteadyTime now = SteadyTime::FromNanoseconds(1);
  const auto saw = [&](uint64_t step, absl::Duration after) {
    now = now + after;
    times.Saw(step, now);
  };
  saw(10, absl::Hours(1));
  EXPECT_EQ(times.Slowest(), absl::ZeroDuration()) << "the end of the previous step is unknown";
  saw(12, absl::Seconds(4));
  EXPECT_EQ(times.Slowest(), absl::Seconds(2)) << "two steps in one report";
  saw(12, absl::Seconds(60));
  saw(11, absl::Seconds(1));
  EXPECT_EQ(times.Slowest(), absl::Seconds(2)) << "nothing new";
  saw(13, absl::Seconds(9));
  EXPECT_EQ(times.Slowest(), absl::Seconds(70)) << "of few, the slowest";
  for (uint64_t step = 14; step < 112; ++step) saw(step, absl::Seconds(1));
  EXPECT_EQ(times.Slowest(), absl::Seconds(2)) << "one outlier in a hundred is ignored";
  for (uint64_t step = 112; step < 120; ++step) saw(step, absl::Seconds(1));
  EXPECT_EQ(times.Slowest(), absl::Seconds(1)) << "older steps are forgotten";
  times.Clear();
  EXPECT_EQ(times.Slowest(), absl::ZeroDuration());
}

}  // namespace
}  // namespace muster::core
