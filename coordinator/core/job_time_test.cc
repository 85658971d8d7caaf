// A job's time_breakdown: how the core's transitions fill it, and what is stored.
#include <gtest/gtest.h>

#include "coordinator/core/core.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

class JobTime : public testing::Test {
 protected:
  void Seconds(double seconds) { w_.clock.Advance(absl::Seconds(seconds)); }
  TimeBreakdown Shown(const JobId& id) { return w_.core->GetJob(id, w_.clock.Read().steady)->time_breakdown(); }
  TimeBreakdown Stored(const JobId& id) { return w_.core->GetJob(id)->time_breakdown(); }
  World w_{AnyWorld()};
};

TEST_F(JobTime, AJobWithAFaultAndAPause) {
  const JobId id = w_.Submit(Gang("g", 1));
  Seconds(7);
  EXPECT_DOUBLE_EQ(Shown(id).queued(), 7) << "also when nothing happens";
  EXPECT_DOUBLE_EQ(Stored(id).queued(), 0);
  w_.Do(NodeConnected{Hello("n", 1)});
  Seconds(3);
  w_.ReportRank(id, 0, RANK_STATE_RUNNING);
  Seconds(2);
  w_.RankProgress(id, 0, 1, 0, 0, 0);
  Seconds(2);
  w_.RankProgress(id, 0, 2, 0, 0, 0);
  RankRecord written{{id, 1, 0}, {}};
  written.record.mutable_checkpoint()->set_step(1);
  written.record.mutable_checkpoint()->set_directory("step-1");
  written.record.mutable_checkpoint()->set_stall_seconds(0.5);
  w_.Do(written);
  Seconds(2);
  w_.RankProgress(id, 0, 3, 0, 0, 0);
  Seconds(31);
  w_.RankProgress(id, 0, 3, 5, 4, 31);  // hung
  Seconds(1);
  w_.ReportRank(id, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  Seconds(1);
  w_.Do(Tick{});  // back-off
  ASSERT_EQ(w_.Newest(id).number(), 2u);
  Seconds(3);
  w_.ReportRank(id, 0, RANK_STATE_RUNNING);
  for (const uint64_t step : {2u, 3u, 4u}) {
    Seconds(2);
    w_.RankProgress(id, 0, step, 0, 0, 0);
  }
  w_.Do(PauseJob{id});
  Seconds(1);
  w_.ReportRank(id, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  Seconds(100);
  w_.Do(ResumeJob{id});
  Seconds(4);
  w_.ReportRank(id, 0, RANK_STATE_RUNNING);
  w_.FinishRank(id, 0);
  Seconds(1000);
  const TimeBreakdown time_breakdown = Shown(id);
  EXPECT_DOUBLE_EQ(time_breakdown.queued(), 7);
  EXPECT_DOUBLE_EQ(time_breakdown.starting(), 3 + 4);
  EXPECT_DOUBLE_EQ(time_breakdown.training(), 2 + 2 + 1.5 + 2 + 1);
  EXPECT_DOUBLE_EQ(time_breakdown.checkpoint_stall(), 0.5);
  EXPECT_DOUBLE_EQ(time_breakdown.detecting(), 31);
  EXPECT_DOUBLE_EQ(time_breakdown.recovering(), 1 + 1 + 3);
  EXPECT_DOUBLE_EQ(time_breakdown.recomputing(), 4);
  EXPECT_DOUBLE_EQ(time_breakdown.paused(), 100);
  EXPECT_EQ(Stored(id).SerializeAsString(), time_breakdown.SerializeAsString()) << "the end is on disk";
}

TEST_F(JobTime, ARestartedCoordinatorContinuesFromTheStoredBreakdown) {
  const JobId id = w_.Submit(Gang("g", 1));
  Seconds(5);
  w_.Do(NodeConnected{Hello("n", 1)});
  Seconds(1);
  w_.ReportRank(id, 0, RANK_STATE_RUNNING);
  uint64_t step = 0;
  for (int i = 0; i < 70; ++i) {
    Seconds(1);
    w_.RankProgress(id, 0, ++step, 0, 0, 0);
  }
  EXPECT_DOUBLE_EQ(Shown(id).training(), 70);
  EXPECT_DOUBLE_EQ(Stored(id).training(), 60) << "once a minute";
  Seconds(1000);  // no coordinator
  w_.Restart();
  EXPECT_DOUBLE_EQ(Shown(id).training(), 60);
  Seconds(2);
  w_.Do(NodeConnected{Hello("n", 1)});
  w_.RankProgress(id, 0, 80, 0, 0, 0);
  EXPECT_DOUBLE_EQ(Shown(id).queued(), 5);
  EXPECT_DOUBLE_EQ(Shown(id).training(), 62);
}

TEST_F(JobTime, ADrainedJobIsRecovering) {
  w_.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w_.Submit(Gang("g", 1));
  w_.ReportRank(id, 0, RANK_STATE_RUNNING);
  Seconds(1);
  w_.RankProgress(id, 0, 1, 0, 0, 0);
  w_.Do(DrainNode{NodeId("n")});
  Seconds(5);
  w_.ReportRank(id, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  w_.Restart();
  Seconds(20);
  w_.Do(NodeConnected{Hello("m", 1)});
  Seconds(2);
  EXPECT_DOUBLE_EQ(Shown(id).recovering(), 27);
  EXPECT_DOUBLE_EQ(Shown(id).detecting(), 0) << "there was nothing to detect";
}

// The checkpoint of step 10 is damaged, and the ranks resume from the one before it.
TEST_F(JobTime, StepsAfterAnOlderCheckpointAreComputedAgain) {
  const JobId id = w_.Submit(Gang("g", 1));
  w_.Do(NodeConnected{Hello("n", 1)});
  w_.ReportRank(id, 0, RANK_STATE_RUNNING);
  Seconds(20);
  w_.RankProgress(id, 0, 10, 0, 0, 0);
  w_.Checkpoint(id, 4);
  w_.Checkpoint(id, 10);
  w_.ReportRank(id, 0, RANK_STATE_EXITED, RankExit::FAILED);
  w_.PassBackoff();
  ASSERT_EQ(w_.Newest(id).resume_from().step(), 10u);
  w_.Begin(id, 4);
  for (uint64_t step = 5; step <= 11; ++step) {
    Seconds(2);
    w_.RankProgress(id, 0, step, 0, 0, 0);
  }
  EXPECT_DOUBLE_EQ(Shown(id).recomputing(), 6 * 2);
  EXPECT_DOUBLE_EQ(Shown(id).training(), 20 + 2);
}

TEST_F(JobTime, ARestartForgetsLittleOfJobsThatDoNotChange) {
  w_.Do(NodeConnected{Hello("n", 1)});
  const JobId runs = w_.Submit(Gang("runs", 1)), waits = w_.Submit(Gang("waits", 1)), paused = w_.Submit(Gang("p", 1));
  w_.RunAll(runs);
  w_.Do(PauseJob{paused});
  w_.Pass(absl::Hours(100) + absl::Seconds(30));
  w_.Restart();
  constexpr double kMinute = 60, kHour = 3600;
  EXPECT_NEAR(w_.core->GetJob(runs)->held_seconds(), 100 * kHour, kMinute);
  EXPECT_NEAR(Stored(waits).queued(), 100 * kHour, kHour);
  EXPECT_NEAR(Stored(paused).paused(), 100 * kHour, kHour);
}

TEST_F(JobTime, TheTimesOfManyJobsAreNotStoredInOneMomentNorEachAlone) {
  constexpr int kJobs = 300;
  w_.Do(NodeConnected{Hello("n", kJobs)});
  for (int job = 0; job < kJobs; ++job) w_.RunAll(w_.Submit(Gang("g", 1)));
  w_.Restart();
  w_.Do(NodeConnected{Hello("n", kJobs)});
  const size_t ticks = static_cast<size_t>(w_.Pass(absl::Minutes(1)));
  EXPECT_LE(ticks, 65u) << "several with one tick";
  EXPECT_GE(ticks, 60u) << "spread over a minute";
  for (const Job& job : w_.core->ListJobs(false)) EXPECT_GT(job.held_seconds(), 0) << job.id();
}

}  // namespace
}  // namespace muster::core
