// Jobs that come after others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

using ::testing::HasSubstr;

JobSpec After(const std::string& name, const std::vector<JobId>& jobs) {
  JobSpec spec = Gang(name, 1);
  for (const JobId& job : jobs) spec.add_after(job.value());
  return spec;
}

TEST(After, AJobStartsWhenThoseBeforeItHaveCompleted) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 4)});
  const JobId first = w.Submit(Gang("first", 1)), second = w.Submit(Gang("second", 1));
  const JobId id = w.Submit(After("job", {first, second}));
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  EXPECT_THAT(w.Get(id).reason(), HasSubstr(absl::StrCat("waiting for ", first.value(), ", ", second.value())));
  const JobId other = w.Submit(Gang("other", 2));
  EXPECT_EQ(w.State(other), JOB_STATE_STARTING) << "it holds nothing back";
  w.FinishRank(first, 0);
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  EXPECT_THAT(w.Get(id).reason(), HasSubstr(absl::StrCat("waiting for ", second.value(), " to complete")));
  w.Do(DeleteJob{first});  // its part is done
  w.FinishRank(second, 0);
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING) << w.Get(id).reason();
}

// Also where no slot is free, so that the queue is not tried to its end.
TEST(After, AJobBeforeItMayBeDeletedOnceItHasCompleted) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 1)});
  const JobId first = w.Submit(Gang("first", 1)), other = w.Submit(Gang("other", 1));
  const JobId id = w.Submit(After("job", {first}));
  w.FinishRank(first, 0);
  ASSERT_EQ(w.State(other), JOB_STATE_STARTING);
  EXPECT_THAT(w.Get(id).reason(), HasSubstr("needs 1 slot, 0 of 1 free"));
  ASSERT_TRUE(w.Do(DeleteJob{first}).status.ok());
  w.FinishRank(other, 0);
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING) << w.Get(id).reason();
}

// Also where it is deleted before the next pass through the queue, or while the job after it is paused.
TEST(After, AJobBeforeItMayBeDeletedAtOnce) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 1)});
  const JobId first = w.Submit(Gang("first", 1));
  const JobId id = w.Submit(After("job", {first})), paused = w.Submit(After("paused", {first}));
  ASSERT_TRUE(w.Do(PauseJob{paused}).status.ok());
  RankRecord finished{{first, 1, 0}, {}};
  finished.record.mutable_finished()->set_step(100);
  ASSERT_TRUE(w.Do(finished).status.ok());
  NodeObserved report{NodeId("a"), Incarnation("i1"), {}};
  ObservedRank& rank = *report.observed.add_ranks();
  rank.mutable_key()->set_job(first.value());
  rank.mutable_key()->set_generation(1);
  rank.set_state(RANK_STATE_EXITED);
  rank.mutable_exit()->set_cause(RankExit::COMPLETED);
  w.Alone(report);
  ASSERT_EQ(w.State(first), JOB_STATE_COMPLETED);
  ASSERT_EQ(w.State(id), JOB_STATE_QUEUED) << "no pass has come yet";
  EXPECT_TRUE(w.Do(DeleteJob{first}).status.ok());
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING) << w.Get(id).reason();
  w.FinishRank(id, 0);
  w.Do(ResumeJob{paused});
  EXPECT_EQ(w.State(paused), JOB_STATE_STARTING) << w.Get(paused).reason();
}

TEST(After, AJobFailsWithThoseBeforeIt) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 1)});
  const JobId first = w.Submit(Gang("first", 1));
  std::vector<JobId> chain = {first};
  for (int i = 0; i < 300; ++i) chain.push_back(w.Submit(After(absl::StrCat("job", i), {chain.back()})));
  w.Do(CancelJob{first});
  w.ReportRank(first, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  for (int i = 0; i < 400 && w.State(chain.back()) == JOB_STATE_QUEUED; ++i)
    w.clock.Advance(absl::Seconds(1)), w.Do(Tick{});
  for (size_t i = 1; i < chain.size(); ++i) ASSERT_EQ(w.State(chain[i]), JOB_STATE_FAILED) << chain[i].value();
  EXPECT_EQ(w.Get(chain[1]).reason(), absl::StrCat(first.value(), ", which it comes after, was cancelled"));
  EXPECT_EQ(w.Get(chain[2]).reason(), absl::StrCat(chain[1].value(), ", which it comes after, failed"));
}

// It is looked at before the job that it comes after, and nothing else happens that would have it looked at again.
TEST(After, AJobBeforeInTheQueueFailsAsWell) {
  World w(AnyWorld());
  const JobId first = w.Submit(Gang("first", 1));
  const JobId second = w.Submit(After("second", {first}));
  JobSpec spec = After("third", {second});
  spec.set_priority(1);
  const JobId third = w.Submit(spec);
  w.Do(CancelJob{first});
  w.Pass(absl::Hours(1));
  EXPECT_EQ(w.State(second), JOB_STATE_FAILED);
  EXPECT_EQ(w.State(third), JOB_STATE_FAILED) << w.Get(third).reason();
}

TEST(After, AJobFailsWithOneThatCannotBePlanned) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 1)});
  w.ReportNothing("a");
  w.held = true;
  const JobId first = w.Submit(Gang("bad", 1)), second = w.Submit(After("second", {first}));
  w.held = false;
  w.Do(Tick{});
  w.Pass(absl::Hours(1));
  EXPECT_EQ(w.State(first), JOB_STATE_FAILED);
  EXPECT_EQ(w.State(second), JOB_STATE_FAILED) << w.Get(second).reason();
}

TEST(After, APausedJobKeepsNoneOfThoseBeforeIt) {
  WorldOptions options = AnyWorld();
  options.keep_ended_for = absl::Hours(24);
  World w(options);
  w.Return(Hello("a", 2));
  const JobId first = w.Submit(Gang("first", 1)), fails = w.Submit(Gang("fails", 1));
  const JobId paused = w.Submit(After("paused", {first})), in_vain = w.Submit(After("in-vain", {fails}));
  for (const JobId& job : {paused, in_vain}) ASSERT_TRUE(w.Do(PauseJob{job}).status.ok());
  w.FinishRank(first, 0);
  w.Do(CancelJob{fails});
  w.ReportRank(fails, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  ASSERT_EQ(w.State(first), JOB_STATE_COMPLETED);
  ASSERT_EQ(w.State(fails), JOB_STATE_CANCELLED);
  EXPECT_LT(w.Pass(absl::Hours(48)), 100);
  for (const JobId& job : {first, fails}) EXPECT_EQ(w.core->Stored(job), nullptr) << job.value();
  w.Restart();
  w.Return(Hello("a", 2, "i2"));
  for (const JobId& job : {paused, in_vain}) ASSERT_TRUE(w.Do(ResumeJob{job}).status.ok());
  EXPECT_EQ(w.State(paused), JOB_STATE_STARTING) << w.Get(paused).reason();
  EXPECT_EQ(w.State(in_vain), JOB_STATE_FAILED) << w.Get(in_vain).reason();
}

// More than one commit has room for.
TEST(After, ManyPausedJobsKeepNoneOfThoseBeforeThem) {
  WorldOptions options = AnyWorld();
  options.max_ended_jobs = 0;
  World w(options);
  w.Return(Hello("a", 1));
  const JobId first = w.Submit(Gang("first", 1));
  std::vector<JobId> paused;
  for (int i = 0; i < 150; ++i) {
    paused.push_back(w.Submit(After(absl::StrCat("job", i), {first})));
    w.Do(PauseJob{paused.back()});
  }
  w.FinishRank(first, 0);
  w.Pass(absl::Seconds(1));
  EXPECT_EQ(w.core->Stored(first), nullptr);
  w.Do(ResumeJob{paused.back()});
  EXPECT_EQ(w.State(paused.back()), JOB_STATE_STARTING) << w.Get(paused.back()).reason();
}

TEST(After, AJobThatCannotCompleteIsRefusedAtOnce) {
  World w(AnyWorld());
  const absl::Status unknown = w.Do(SubmitJob{"r1", "ann", After("a", {JobId("none-1")}), "x"}).status;
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound) << unknown;
  const JobId first = w.Submit(Gang("first", 1));
  w.Do(CancelJob{first});
  const absl::Status cancelled = w.Do(SubmitJob{"r2", "ann", After("b", {first}), "y"}).status;
  EXPECT_EQ(cancelled.code(), absl::StatusCode::kFailedPrecondition) << cancelled;
}

}  // namespace
}  // namespace muster::core
