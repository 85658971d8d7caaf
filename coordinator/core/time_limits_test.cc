// Time limits: warning, stop with a checkpoint, and what the queue makes of them.
#include <gmock/gmock.h>

#include "common/proto_time.h"
#include "coordinator/core/time_limits.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class TimeLimitWorld : public ::testing::Test {
 protected:
  World w_{AnyWorld()};
};

TEST_F(TimeLimitWorld, AWarningThenAStopWithACheckpointThenFailed) {
  w_.Return(Hello("n", 1));
  const JobId id = w_.Submit(Limited("a", "30m"));
  w_.RunAll(id);
  w_.Pass(absl::Minutes(27) - absl::Seconds(1));
  EXPECT_THAT(w_.events, Not(Contains("job.time_limit")));
  w_.Pass(absl::Seconds(1));  // a tenth before
  EXPECT_THAT(w_.events, Contains("job.time_limit"));
  EXPECT_NE(w_.core->DesiredFor(NodeId("n")).ranks(0).run().checkpoint_request(), 0u);
  w_.Checkpoint(id, 40);
  w_.Pass(absl::Minutes(3) - absl::Seconds(1));
  EXPECT_EQ(w_.State(id), JOB_STATE_RUNNING);
  w_.Pass(absl::Seconds(1));
  EXPECT_EQ(w_.State(id), JOB_STATE_STOPPING);
  const muster::Stop stop = w_.core->DesiredFor(NodeId("n")).ranks(0).stop();
  EXPECT_TRUE(stop.checkpoint_first());
  EXPECT_EQ(stop.reason(), END_REASON_TIMEOUT);
  w_.Checkpoint(id, 44);
  w_.EndAll(id);
  const Job job = w_.Get(id);
  EXPECT_EQ(job.state(), JOB_STATE_FAILED);
  EXPECT_EQ(w_.Newest(id).reason(), END_REASON_TIMEOUT);
  EXPECT_THAT(job.reason(), AllOf(HasSubstr("its time_limit of 30m is reached"), HasSubstr("step 44 is saved"),
                                  HasSubstr("checkpoint.resume_from /c/" + id.value())));
  EXPECT_EQ(job.restarts(), 0u);
  EXPECT_DOUBLE_EQ(job.held_seconds(), 30 * 60);
}

TEST_F(TimeLimitWorld, AJobThatFinishesWhileItStopsIsCompleted) {
  w_.Return(Hello("n", 1));
  const JobId id = w_.Submit(Limited("a", "30m"));
  w_.RunAll(id);
  w_.Pass(absl::Minutes(30));
  ASSERT_EQ(w_.State(id), JOB_STATE_STOPPING);
  w_.Finish(id);
  EXPECT_EQ(w_.State(id), JOB_STATE_COMPLETED);
}

TEST_F(TimeLimitWorld, AUsersRequestWinsOverTheLimit) {
  w_.Return(Hello("n", 1));
  const JobId id = w_.Submit(Limited("a", "30m"));
  w_.RunAll(id);
  w_.Pass(absl::Minutes(30));
  w_.Do(CancelJob{id});
  w_.EndAll(id);
  EXPECT_EQ(w_.State(id), JOB_STATE_CANCELLED);
}

// Waiting and a pause do not count; a restart of the coordinator forgets nothing that was written.
TEST_F(TimeLimitWorld, TheTimeCountsOverAllGenerations) {
  w_.Return(Hello("n", 1));
  const JobId id = w_.Submit(Limited("a", "30m"));
  w_.RunAll(id);
  w_.Pass(absl::Minutes(10));
  w_.Do(PauseJob{id});
  w_.EndAll(id);
  ASSERT_EQ(w_.State(id), JOB_STATE_PAUSED);
  w_.Pass(absl::Hours(5));
  w_.Restart();
  w_.Return(Hello("n", 1));
  w_.Do(ResumeJob{id});
  w_.RunAll(id);
  w_.Pass(absl::Minutes(20) - absl::Seconds(1));
  EXPECT_EQ(w_.State(id), JOB_STATE_RUNNING);
  const SteadyTime now = w_.clock.Read().steady;
  EXPECT_DOUBLE_EQ(w_.core->GetJob(id, now)->held_seconds(), 30 * 60 - 1);
  EXPECT_DOUBLE_EQ(w_.core->ListJobs(false, "", 9, 1 << 20, now)->jobs.at(0).slot_seconds(), 30 * 60 - 1);
  w_.Pass(absl::Seconds(1));
  EXPECT_EQ(w_.State(id), JOB_STATE_STOPPING);
}

// A program that reports nothing changes no row by itself.
TEST_F(TimeLimitWorld, ARestartForgetsNoMoreThanAMinuteOfAJobThatReportsNothing) {
  w_.Return(Hello("n", 1));
  const JobId id = w_.Submit(Limited("a", "30m"));
  w_.RunAll(id);
  for (int restarts = 0; restarts < 2; ++restarts) {
    w_.Pass(absl::Minutes(10));
    w_.Restart();
    w_.Do(NodeConnected{Hello("n", 1)});
    w_.Report(id, RANK_STATE_RUNNING, RankExit::CAUSE_UNSPECIFIED, /*full=*/true);
    ASSERT_EQ(w_.State(id), JOB_STATE_RUNNING);
  }
  w_.Pass(absl::Minutes(8));
  EXPECT_EQ(w_.State(id), JOB_STATE_RUNNING);
  w_.Pass(absl::Minutes(4));
  EXPECT_EQ(w_.State(id), JOB_STATE_STOPPING);
}

TEST_F(TimeLimitWorld, WithoutTimeLeftItFailsInTheQueue) {
  w_.Return(Hello("n", 1));
  const JobId id = w_.Submit(Limited("a", "30m"));
  w_.RunAll(id);
  w_.Pass(absl::Minutes(30));
  w_.Do(PauseJob{id});  // the user wants to keep it
  w_.EndAll(id);
  ASSERT_EQ(w_.State(id), JOB_STATE_PAUSED);
  w_.Do(ResumeJob{id});
  EXPECT_EQ(w_.State(id), JOB_STATE_FAILED);
  EXPECT_THAT(w_.Get(id).reason(), HasSubstr("no checkpoint"));
}

// 30m and the time that a stop may take: by then the first job is gone.
TEST_F(TimeLimitWorld, TheHeadsStartIsPredictedAndShortJobsOvertakeIt) {
  w_.Return(Hello("n", 4));
  const JobId first = w_.Submit(Limited("first", "30m", 2));
  w_.RunAll(first);
  const JobId head = w_.Submit(Gang("head", 4));
  const JobId longer = w_.Submit(Limited("longer", "31m"));
  const JobId unlimited = w_.Submit(Gang("unlimited", 1));
  const JobId shorter = w_.Submit(Limited("shorter", "30m"));
  EXPECT_EQ(w_.State(shorter), JOB_STATE_STARTING);
  EXPECT_EQ(w_.State(longer), JOB_STATE_QUEUED);
  EXPECT_EQ(w_.State(unlimited), JOB_STATE_QUEUED);
  const Job waiting = w_.Get(head);
  const absl::Duration stop = w_.options.timeouts.stop;
  EXPECT_EQ(FromProto(waiting.predicted_start()), w_.clock.Read().wall + absl::Minutes(30) + stop);
  EXPECT_THAT(waiting.reason(), HasSubstr("1st in the queue, starts in at most 3"));
  EXPECT_FALSE(w_.Get(longer).has_predicted_start());
  EXPECT_THAT(w_.Get(longer).reason(), HasSubstr("with a time_limit that ends before"));
  w_.RunAll(shorter);
  w_.Pass(absl::Minutes(30));
  w_.EndAll(first);
  w_.EndAll(shorter);
  EXPECT_EQ(w_.State(head), JOB_STATE_STARTING);
}

}  // namespace
}  // namespace muster::core
