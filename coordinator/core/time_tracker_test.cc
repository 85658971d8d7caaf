#include "coordinator/core/time_tracker.h"

#include <gtest/gtest.h>

#include <random>

namespace muster::core {
namespace {

using Phase = TimeTracker::Phase;

double Sum(const TimeBreakdown& l) {
  return l.queued() + l.starting() + l.training() + l.checkpoint_stall() + l.detecting() + l.recovering() +
         l.recomputing() + l.paused();
}

class TimeTrackerTest : public testing::Test {
 protected:
  SteadyTime After(double seconds) { return start_ + absl::Seconds(seconds); }
  const SteadyTime start_ = SteadyTime::FromNanoseconds(1'000'000'000);
  TimeTracker time_{TimeBreakdown(), Phase::kQueued, 0, start_};
};

TEST_F(TimeTrackerTest, AJobWithAFault) {
  time_.Place(0, After(10));
  time_.Run(After(15));
  time_.Step(1, After(17));
  time_.Stall(0.5);
  time_.Step(4, After(20));
  time_.Fault(After(23));
  time_.Place(2, After(26));  // from the checkpoint of step 2
  time_.Run(After(30));
  time_.Step(3, After(31));
  time_.Step(5, After(33));  // one again, one new
  time_.Enter(Phase::kOver, After(34));
  const TimeBreakdown l = time_.UpTo(After(1000));
  EXPECT_DOUBLE_EQ(l.queued(), 10);
  EXPECT_DOUBLE_EQ(l.starting(), 5);
  EXPECT_DOUBLE_EQ(l.training(), 2 + 2.5 + 1 + 1);
  EXPECT_DOUBLE_EQ(l.checkpoint_stall(), 0.5);
  EXPECT_DOUBLE_EQ(l.detecting(), 3);
  EXPECT_DOUBLE_EQ(l.recovering(), 3 + 4);
  EXPECT_DOUBLE_EQ(l.recomputing(), 1 + 1);
  EXPECT_DOUBLE_EQ(Sum(l), 34) << "the job has ended";
}

TEST_F(TimeTrackerTest, StepsAfterAnOlderCheckpointAreComputedAgain) {
  time_.Place(0, After(0));
  time_.Run(After(0));
  time_.Step(10, After(10));
  time_.Fault(After(10));
  time_.Place(10, After(10));
  time_.Resume(4);  // the checkpoint of step 10 is damaged
  time_.Run(After(10));
  for (uint64_t step = 5; step <= 12; ++step) time_.Step(step, After(static_cast<double>(step) + 6));
  EXPECT_DOUBLE_EQ(time_.UpTo(After(18)).recomputing(), 6);
  EXPECT_DOUBLE_EQ(time_.UpTo(After(18)).training(), 10 + 2);
}

TEST_F(TimeTrackerTest, AFaultBeforeTheFirstStepIsFoundAtOnce) {
  time_.Place(0, After(1));
  time_.Fault(After(5));
  time_.Place(0, After(6));
  time_.Run(After(9));
  const TimeBreakdown l = time_.UpTo(After(9));
  EXPECT_DOUBLE_EQ(l.starting(), 4);
  EXPECT_DOUBLE_EQ(l.recovering(), 4);
  EXPECT_DOUBLE_EQ(l.detecting(), 0);
}

TEST_F(TimeTrackerTest, APauseIsNotAFault) {
  time_.Place(0, After(1));
  time_.Run(After(2));
  time_.Step(1, After(4));
  time_.Stall(3);
  time_.Enter(Phase::kPaused, After(6));
  time_.Enter(Phase::kQueued, After(16));
  time_.Place(1, After(20));
  time_.Run(After(21));
  const TimeBreakdown l = time_.UpTo(After(21));
  EXPECT_DOUBLE_EQ(l.training(), 2);
  EXPECT_DOUBLE_EQ(l.checkpoint_stall(), 2) << "at most the elapsed time";
  EXPECT_DOUBLE_EQ(l.paused(), 10);
  EXPECT_DOUBLE_EQ(l.queued(), 1 + 4);
  EXPECT_DOUBLE_EQ(l.starting(), 2);
}

TEST_F(TimeTrackerTest, ContinuesFromTheStoredBreakdown) {
  TimeBreakdown kept;
  kept.set_training(100);
  TimeTracker time(kept, Phase::kRunning, /*done_step=*/50, start_);
  time.Step(50, After(1));  // the first report: counts as one step
  time.Step(52, After(3));
  EXPECT_DOUBLE_EQ(time.UpTo(After(3)).recomputing(), 1);
  EXPECT_DOUBLE_EQ(time.UpTo(After(3)).training(), 102);
}

// Whatever happens, every moment counts once and no category shrinks.
TEST_F(TimeTrackerTest, EveryMomentCountsOnce) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    TimeTracker time(TimeBreakdown(), Phase::kQueued, 0, start_);
    TimeBreakdown before;
    SteadyTime now = start_;
    for (int i = 0; i < 100; ++i) {
      now = now + absl::Milliseconds(random() % 5000);
      switch (random() % 8) {
        case 0:
          time.Place(random() % 20, now);
          break;
        case 1:
          time.Run(now);
          break;
        case 2:
        case 3:
          time.Step(random() % 40, now);
          break;
        case 4:
          time.Stall(static_cast<double>(random() % 4));
          break;
        case 5:
          time.Fault(now);
          break;
        case 6:
          time.Resume(random() % 20);
          break;
        default:
          time.Enter(random() % 2 ? Phase::kPaused : Phase::kQueued, now);
      }
      const TimeBreakdown shown = time.UpTo(now);
      for (const auto& label : {&TimeBreakdown::queued, &TimeBreakdown::starting, &TimeBreakdown::training,
                                &TimeBreakdown::checkpoint_stall, &TimeBreakdown::detecting, &TimeBreakdown::recovering,
                                &TimeBreakdown::recomputing, &TimeBreakdown::paused}) {
        ASSERT_GE((shown.*label)(), (before.*label)()) << "seed " << seed << " event " << i;
      }
      before = shown;
      ASSERT_LE(Sum(shown), absl::ToDoubleSeconds(now - start_) + 1e-6);
      if (time.phase() != Phase::kRunning) {
        ASSERT_NEAR(Sum(shown), absl::ToDoubleSeconds(now - start_), 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace muster::core
