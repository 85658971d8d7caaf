#include "worker/trainer/speed.h"

#include <gtest/gtest.h>

namespace muster::trainer {
namespace {

// Any machine of today; far off would be a mistake in the count or in the clock.
TEST(MeasureSpeed, IsOfTheRightOrder) {
  for (const Dtype dtype : {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16}) {
    const double speed = MeasureSpeed({.width = 256, .dtype = dtype});
    EXPECT_GT(speed, 1e8) << Dtype_Name(dtype);
    EXPECT_LT(speed, 1e14) << Dtype_Name(dtype);
  }
}

TEST(MeasureSpeed, WhatCannotBeMeasuredIsUnknown) { EXPECT_EQ(MeasureSpeed({.width = -1}), 0); }

}  // namespace
}  // namespace muster::trainer
