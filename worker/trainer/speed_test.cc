#include "worker/trainer/speed.h"

#include <gtest/gtest.h>

namespace muster::trainer {
namespace {

// Any machine of today; far off would be a mistake in the count or in the clock.
TEST(MeasureSpeed, IsOfTheRightOrder) {
  for (const bool bf16 : {false, true}) {
    const double speed = MeasureSpeed({.width = 256, .bf16 = bf16});
    EXPECT_GT(speed, 1e8) << bf16;
    EXPECT_LT(speed, 1e14) << bf16;
  }
}

TEST(MeasureSpeed, WhatCannotBeMeasuredIsUnknown) { EXPECT_EQ(MeasureSpeed({.width = -1}), 0); }

}  // namespace
}  // namespace muster::trainer
