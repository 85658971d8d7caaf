#include "common/step_time.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(StepTime, IsSteadyWhereStepsAreNot) {
  StepTime time;
  EXPECT_EQ(time.mean_seconds(), 0);
  for (uint64_t step = 1; step <= 200; ++step) {
    time.Add(step, step % 2 == 0 ? 1 : 3);
    if (step >= 100) {
      EXPECT_NEAR(time.mean_seconds(), 2, 0.1) << step;
    }
  }
}

TEST(StepTime, FollowsWithinMinutes) {
  StepTime time;
  for (uint64_t step = 1; step <= 1000; ++step) time.Add(step, 1);
  EXPECT_NEAR(time.mean_seconds(), 1, 1e-9);
  for (uint64_t step = 1001; step <= 1030; ++step) time.Add(step, 10);  // five minutes
  EXPECT_NEAR(time.mean_seconds(), 10, 1);
}

TEST(StepTime, TheFirstStepCountsUntilTheSecond) {
  StepTime time;
  time.Add(1, 50);
  EXPECT_EQ(time.mean_seconds(), 50);
  time.Add(2, 1);
  EXPECT_EQ(time.mean_seconds(), 1);
  time.Add(3, 1);
  EXPECT_NEAR(time.mean_seconds(), 1, 1e-9);
  time.Add(2, 40);  // again, after a fault
  EXPECT_EQ(time.mean_seconds(), 40);
  time.Add(3, 4);
  EXPECT_EQ(time.mean_seconds(), 4);
}

TEST(StepTime, IgnoresWhatIsNoTime) {
  StepTime time;
  time.Add(1, 0);
  time.Add(2, -1);
  time.Add(3, std::nan(""));
  EXPECT_EQ(time.mean_seconds(), 0);
}

}  // namespace
}  // namespace muster
