#include "worker/trainer/compressing.h"

#include <gtest/gtest.h>

namespace muster::trainer {
namespace {

// Far off would be a mistake in the count or in the clock.
TEST(MeasureCompressing, IsOfTheRightOrder) {
  const strategies::Compressing measured = MeasureCompressing(absl::Milliseconds(100));
  for (const double seconds : {measured.top_k, measured.power_sgd, measured.int8}) {
    EXPECT_GT(seconds, 1e-11);
    EXPECT_LT(seconds, 1e-5);
  }
}

// By a clock of which each reading is 25 ms after the one before, sums of 250,000 elements take 100 ns an element.
TEST(MeasureCompressing, IsTheTimeOfASumOverItsElements) {
  absl::Duration now;
  int readings = 0;
  const strategies::Compressing measured = MeasureCompressing(absl::Hours(1), [&] {
    ++readings;
    return now += absl::Milliseconds(25);
  });
  EXPECT_DOUBLE_EQ(measured.top_k, 1e-7);
  EXPECT_DOUBLE_EQ(measured.power_sgd, 1e-7);
  EXPECT_DOUBLE_EQ(measured.int8, 1e-7);
  const int with_time = readings;
  readings = 0;
  EXPECT_DOUBLE_EQ(MeasureCompressing(absl::ZeroDuration(),
                                      [&] {
                                        ++readings;
                                        return now += absl::Milliseconds(25);
                                      })
                       .int8,
                   1e-7);
  EXPECT_LT(readings, with_time) << "without time each kind has three sums that count";
}

// Other ranks start at the same time, so most sums are interrupted for a while.
TEST(MeasureCompressing, IsOfASumThatWasNotInterrupted) {
  absl::Duration now;
  int readings = 0;
  const auto interrupted = [&] { return now += absl::Milliseconds(++readings % 3 == 0 ? 25 : 500); };
  const strategies::Compressing measured = MeasureCompressing(absl::ZeroDuration(), interrupted);
  for (const double seconds : {measured.top_k, measured.power_sgd, measured.int8}) EXPECT_DOUBLE_EQ(seconds, 1e-7);
}

}  // namespace
}  // namespace muster::trainer
