#include "worker/engine/learning_rate.h"

#include <gtest/gtest.h>

namespace muster::engine {
namespace {

Optimizer Peak(double lr, uint64_t warmup) {
  Optimizer optimizer;
  optimizer.set_lr(lr);
  optimizer.mutable_lr_schedule()->set_warmup_steps(warmup);
  optimizer.mutable_lr_schedule()->mutable_constant();
  return optimizer;
}

TEST(LearningRate, ConstantAfterALinearWarmUp) {
  const Optimizer o = Peak(1.0, 4);
  EXPECT_DOUBLE_EQ(LearningRate(o, 0, 10), 0.25);
  EXPECT_DOUBLE_EQ(LearningRate(o, 3, 10), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(o, 9, 10), 1.0);
}

TEST(LearningRate, LinearEndsAtItsMinimum) {
  Optimizer o = Peak(1.0, 0);
  o.mutable_lr_schedule()->mutable_linear()->set_min_lr(0.1);
  EXPECT_DOUBLE_EQ(LearningRate(o, 0, 11), 1.0);
  EXPECT_NEAR(LearningRate(o, 5, 11), 0.55, 1e-12);
  EXPECT_NEAR(LearningRate(o, 10, 11), 0.1, 1e-12);
}

TEST(LearningRate, CosineEndsAtItsMinimum) {
  Optimizer o = Peak(2.0, 10);
  o.mutable_lr_schedule()->mutable_cosine()->set_min_lr(0.2);
  EXPECT_DOUBLE_EQ(LearningRate(o, 9, 111), 2.0);
  EXPECT_DOUBLE_EQ(LearningRate(o, 10, 111), 2.0);
  EXPECT_NEAR(LearningRate(o, 60, 111), 1.1, 1e-12);
  EXPECT_NEAR(LearningRate(o, 110, 111), 0.2, 1e-12);
}

// torch.optim.lr_scheduler.MultiStepLR(milestones=[3, 5], gamma=0.1) of 1.0, step by step.
TEST(LearningRate, StepFallsAtItsMilestones) {
  Optimizer o = Peak(1.0, 0);
  StepLr& step = *o.mutable_lr_schedule()->mutable_step();
  step.set_gamma(0.1), step.add_milestones(3), step.add_milestones(5);
  const double theirs[] = {1, 1, 1, 0.1, 0.1, 0.01, 0.01};
  for (uint64_t s = 0; s < 7; ++s) EXPECT_NEAR(LearningRate(o, s, 7), theirs[s], 1e-12) << s;
  o.mutable_lr_schedule()->set_warmup_steps(2);
  EXPECT_DOUBLE_EQ(LearningRate(o, 0, 7), 0.5);
}

TEST(LearningRate, NeverLeavesItsRangeWhateverTheLengths) {
  for (uint64_t steps = 1; steps < 12; ++steps) {
    for (uint64_t warmup = 0; warmup < 14; ++warmup) {
      Optimizer o = Peak(1.0, warmup);
      o.mutable_lr_schedule()->mutable_cosine()->set_min_lr(0.1);
      for (uint64_t s = 0; s < steps; ++s) {
        EXPECT_GT(LearningRate(o, s, steps), 0);
        EXPECT_LE(LearningRate(o, s, steps), 1.0);
      }
    }
  }
}

}  // namespace
}  // namespace muster::engine
