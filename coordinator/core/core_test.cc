// The state machines of one job and one node, scenario by scenario.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/checkpoint_answer.h"
#include "coordinator/core/core.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

TEST(Core, AJobRunsToItsEnd) {
  World w;
  const JobId id = w.Submit(Spec("a"));
  EXPECT_EQ(w.Get(id).reason(), "1st in the queue: no node has joined yet");
  const Outcome joined = w.Do(NodeConnected{Hello("n", 1)});
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING);
  // The row of the generation is in the commit that comes before the action.
  EXPECT_TRUE(std::any_of(joined.rows.begin(), joined.rows.end(),
                          [](const RowChange& r) { return absl::StartsWith(r.key, "generation/"); }));
  EXPECT_TRUE(std::holds_alternative<SendDesired>(joined.actions.back()));
  const Desired desired = w.core->DesiredFor(NodeId("n"));
  ASSERT_EQ(desired.ranks_size(), 1);
  const Assignment& assignment = desired.ranks(0).run();
  EXPECT_EQ(assignment.schedule_digest(), w.Newest(id).schedule_digest());
  EXPECT_EQ(assignment.device(), DEVICE_CPU);
  EXPECT_EQ(assignment.owner(), "me");
  EXPECT_EQ(assignment.table_sha256(), w.Newest(id).table_sha256());
  EXPECT_FALSE(assignment.has_table()) << "fetched once per node";
  ASSERT_NE(w.core->PlanOf(id), nullptr);
  EXPECT_GT(w.core->PlanOf(id)->table.units_size(), 0);

  w.Report(id, RANK_STATE_RUNNING);
  EXPECT_EQ(w.State(id), JOB_STATE_RUNNING);
  w.Finish(id);
  EXPECT_EQ(w.State(id), JOB_STATE_COMPLETED);
  EXPECT_EQ(w.Newest(id).reason(), END_REASON_COMPLETED);
  EXPECT_EQ(w.core->DesiredFor(NodeId("n")).ranks_size(), 0);
  EXPECT_EQ(w.events, (std::vector<std::string>{"job.queued", "node.joined", "generation.starting", "job.running",
                                                "rank.exited", "generation.ended", "job.completed"}));
}

TEST(Core, SubmitIsIdempotentByRequest) {
  World w;
  const Outcome first = w.Do(SubmitJob{"r", "me", Spec("a"), "xxxx"});
  const Outcome again = w.Do(SubmitJob{"r", "me", Spec("a"), "yyyy"});
  EXPECT_EQ(again.job, first.job);
  EXPECT_TRUE(again.rows.empty());
  EXPECT_EQ(w.Do(SubmitJob{"r", "me", Spec("b"), "zzzz"}).status.code(), absl::StatusCode::kAlreadyExists);
  w.Restart();
  EXPECT_EQ(w.Do(SubmitJob{"r", "me", Spec("a"), "wwww"}).job, first.job);
  EXPECT_NE(w.Do(SubmitJob{"r2", "me", Spec("a"), "xxxx"}).job, first.job) << "an id in use is not assigned again";
}

TEST(Core, EachUserHasRequestIdsOfTheirOwn) {
  World w;
  const JobId mine = w.Do(SubmitJob{"r", "me", Spec("a"), "xxxx"}).job;
  const Outcome other = w.Do(SubmitJob{"r", "you", Spec("b"), "yyyy"});
  ASSERT_TRUE(other.status.ok()) << other.status;
  EXPECT_EQ(w.Get(other.job).owner(), "you");
  w.Restart();
  EXPECT_EQ(w.Do(SubmitJob{"r", "me", Spec("a"), "zzzz"}).job, mine);
  EXPECT_EQ(w.Do(SubmitJob{"r", "you", Spec("b"), "zzzz"}).job, other.job);
  EXPECT_EQ(w.Do(SubmitJob{"r", "you", Spec("a"), "zzzz"}).status.code(), absl::StatusCode::kAlreadyExists);
  w.Do(CancelJob{other.job});
  ASSERT_TRUE(w.Do(DeleteJob{other.job}).status.ok());
  EXPECT_EQ(w.Do(SubmitJob{"r", "me", Spec("a"), "zzzz"}).job, mine) << "it is still known";
}

TEST(Core, TheQueueIsOrderedAndSaysWhy) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId a = w.Submit(Spec("a")), b = w.Submit(Spec("b")), c = w.Submit(Spec("c", 5));
  EXPECT_EQ(w.State(a), JOB_STATE_STARTING);
  EXPECT_EQ(w.Get(c).queue_position(), 1u);
  EXPECT_EQ(w.Get(b).queue_position(), 2u);
  EXPECT_EQ(w.Get(b).reason(), absl::StrCat("2nd in the queue: needs 1 slot, 0 of 1 free (in use: ", a.value(), ")"));
  w.Finish(a);
  EXPECT_EQ(w.State(c), JOB_STATE_STARTING) << "the higher priority runs first";
  EXPECT_EQ(w.State(b), JOB_STATE_QUEUED);
}

TEST(Core, AFailedRankRestartsFromTheNewestCheckpointWithBackoff) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  EXPECT_TRUE(w.Checkpoint(id, 50).status.ok());
  EXPECT_EQ(w.core->DesiredFor(NodeId("n")).ranks(0).run().published_size(), 1);
  w.Report(id, RANK_STATE_EXITED, RankExit::FAILED);
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  EXPECT_TRUE(absl::StrContains(w.Get(id).reason(), "SIGKILL")) << w.Get(id).reason();
  EXPECT_EQ(w.Get(id).failure().rank(), 0u);
  ASSERT_TRUE(w.core->NextTick().has_value());
  w.Do(Tick{});
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED) << "not before its back-off is over";
  w.clock.Advance(absl::Seconds(1));
  w.Do(Tick{});
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING);
  EXPECT_EQ(w.Newest(id).number(), 2u);
  EXPECT_EQ(w.Newest(id).resume_from().step(), 50u);
}

TEST(Core, RestartsWithoutProgressEndTheJob) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a", 0, 2));
  for (int i = 0; i < 2; ++i) {
    w.Report(id, RANK_STATE_RUNNING);
    w.Report(id, RANK_STATE_EXITED, RankExit::FAILED);
    EXPECT_EQ(w.State(id), JOB_STATE_QUEUED) << i;
    w.PassBackoff();
  }
  EXPECT_EQ(w.Get(id).restarts_without_progress(), 2u);
  w.Checkpoint(id, 10);  // progress: the count restarts
  EXPECT_EQ(w.Get(id).restarts_without_progress(), 0u);
  for (int i = 0; i < 2; ++i) {
    w.Report(id, RANK_STATE_EXITED, RankExit::FAILED);
    EXPECT_EQ(w.State(id), JOB_STATE_QUEUED) << i;
    w.PassBackoff();
  }
  w.Report(id, RANK_STATE_EXITED, RankExit::FAILED);
  EXPECT_EQ(w.State(id), JOB_STATE_FAILED);
  EXPECT_TRUE(absl::StrContains(w.Get(id).reason(), "SIGKILL")) << w.Get(id).reason();
  EXPECT_FALSE(w.Get(id).failure().hint().empty());
}

TEST(Core, CancelInEveryState) {
  World w;
  const JobId queued = w.Submit(Spec("a"));
  EXPECT_TRUE(w.Do(CancelJob{queued}).status.ok());
  EXPECT_EQ(w.State(queued), JOB_STATE_CANCELLED);
  EXPECT_TRUE(w.Do(CancelJob{queued}).status.ok()) << "a repeated request changes nothing";
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId running = w.Submit(Spec("b")), next = w.Submit(Spec("c"));
  w.Report(running, RANK_STATE_RUNNING);
  w.Do(CancelJob{running});
  EXPECT_EQ(w.State(running), JOB_STATE_STOPPING);
  const Desired desired = w.core->DesiredFor(NodeId("n"));
  ASSERT_TRUE(desired.ranks(0).has_stop());
  EXPECT_TRUE(desired.ranks(0).stop().checkpoint_first());
  EXPECT_EQ(w.State(next), JOB_STATE_QUEUED) << "the slot is held until the rank has ended";
  w.Checkpoint(running, 7);  // the last one, during the stop
  w.Report(running, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(running), JOB_STATE_CANCELLED);
  EXPECT_EQ(w.Get(running).checkpoints_size(), 1);
  EXPECT_EQ(w.State(next), JOB_STATE_STARTING);
  w.Finish(next);
  EXPECT_EQ(w.Do(CancelJob{next}).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(w.Do(CancelJob{JobId("no-such-job")}).status.code(), absl::StatusCode::kNotFound);
}

TEST(Core, PauseAndResume) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  w.Do(PauseJob{id});
  w.Checkpoint(id, 30);
  w.Report(id, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(id), JOB_STATE_PAUSED);
  EXPECT_EQ(w.Get(id).restarts(), 0u) << "a pause is not a restart";
  w.PassBackoff();
  EXPECT_EQ(w.State(id), JOB_STATE_PAUSED);
  w.Do(ResumeJob{id});
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING);
  EXPECT_EQ(w.Newest(id).resume_from().step(), 30u);
  w.Do(PauseJob{id});
  w.Do(ResumeJob{id});  // before it has stopped
  w.Report(id, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING);
  w.Do(PauseJob{id});
  w.Do(CancelJob{id});  // replaces the pause
  w.Report(id, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(id), JOB_STATE_CANCELLED);
}

TEST(Core, AJobThatFinishesWhileItIsStoppedHasCompleted) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  w.Do(CancelJob{id});
  w.Finish(id);
  EXPECT_EQ(w.State(id), JOB_STATE_COMPLETED);
}

TEST(Core, AnExitInGoodOrderBeforeTheLastStepIsNoEnd) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  w.Report(id, RANK_STATE_EXITED, RankExit::COMPLETED);  // no Finished record: an outside SIGTERM
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED) << "not restarted at once: its worker may be about to leave";
  w.PassBackoff();
  EXPECT_EQ(w.Newest(id).number(), 2u);
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING);
}

TEST(Core, OnlyTheCurrentGenerationPublishesAndOnlyForward) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  w.Checkpoint(id, 10);
  w.Checkpoint(id, 10);
  EXPECT_EQ(w.Get(id).checkpoints_size(), 1) << "a repeated report publishes once";
  w.Report(id, RANK_STATE_EXITED, RankExit::FAILED);
  w.PassBackoff();
  EXPECT_EQ(w.Checkpoint(id, 20, 1).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(w.Checkpoint(id, 20).status.ok());
  w.Checkpoint(id, 30);
  EXPECT_EQ(w.Get(id).checkpoints_size(), 2) << "keep: 2";
  EXPECT_EQ(w.Get(id).checkpoints(0).step(), 20u);
}

// Steps and generations of the published checkpoints.
std::vector<std::pair<uint64_t, uint64_t>> PublishedOf(const Job& job) {
  std::vector<std::pair<uint64_t, uint64_t>> published;
  for (const PublishedCheckpoint& checkpoint : job.checkpoints()) {
    published.emplace_back(checkpoint.step(), checkpoint.generation());
  }
  return published;
}
using StepsAndGenerations = std::vector<std::pair<uint64_t, uint64_t>>;

class SkippedCheckpoints : public testing::Test {
 protected:
  void SetUp() override { w_.Do(NodeConnected{Hello("n", 1)}); }
  // Generation 1 publishes these steps, and generation 2 resumes from one of them.
  void Damage(uint32_t keep, const std::vector<uint64_t>& steps, uint64_t resumed) {
    JobSpec spec = Spec("a");
    spec.mutable_train()->mutable_checkpoint()->set_keep(keep);
    id_ = w_.Submit(spec);
    w_.Report(id_, RANK_STATE_RUNNING);
    for (const uint64_t step : steps) w_.Checkpoint(id_, step);
    w_.Report(id_, RANK_STATE_EXITED, RankExit::FAILED);
    w_.PassBackoff();
    ASSERT_EQ(w_.Newest(id_).number(), 2u);
    ASSERT_EQ(w_.Newest(id_).resume_from().step(), steps.back());
    w_.events.clear();
    ASSERT_TRUE(w_.Begin(id_, resumed).status.ok());
  }
  World w_;
  JobId id_;
};

TEST_F(SkippedCheckpoints, TheNextOneIsPublishedInTheirPlace) {
  Damage(2, {20, 30}, 20);
  EXPECT_EQ(w_.events, (std::vector<std::string>{"checkpoint.skipped", "job.running"}));
  EXPECT_EQ(PublishedOf(w_.Get(id_)), (StepsAndGenerations{{20, 1}, {30, 1}})) << "until there is a newer one";
  w_.RankProgress(id_, 0, 24, 0, 0, 0);
  const CheckpointRequested requested = RequestedNow(w_.Get(id_), w_.core->HighestStep(id_));
  w_.Checkpoint(id_, 25);
  EXPECT_EQ(PublishedOf(w_.Get(id_)), (StepsAndGenerations{{20, 1}, {25, 2}}));
  const auto answer = AnswerTo(requested, w_.Get(id_), false);
  ASSERT_TRUE(answer.has_value()) << "checkpoint now";
  EXPECT_EQ(answer->step(), 25u);
  const google::protobuf::RepeatedPtrField<PublishedCheckpoint> kept =
      w_.core->DesiredFor(NodeId("n")).ranks(0).run().published();
  ASSERT_EQ(kept.size(), 2) << "what rank 0 does not remove";
  EXPECT_EQ(kept[1].step(), 25u);

  w_.events.clear();
  w_.Checkpoint(id_, 25);
  EXPECT_EQ(w_.events, std::vector<std::string>()) << "a repeated report publishes once";
  EXPECT_EQ(w_.Checkpoint(id_, 40, 1).status.code(), absl::StatusCode::kFailedPrecondition) << "generation 1 is over";
  w_.Checkpoint(id_, 30);  // the step of the damaged one
  EXPECT_EQ(PublishedOf(w_.Get(id_)), (StepsAndGenerations{{25, 2}, {30, 2}}));
  w_.Checkpoint(id_, 25);
  EXPECT_EQ(PublishedOf(w_.Get(id_)), (StepsAndGenerations{{25, 2}, {30, 2}})) << "a late repeated report";
}

TEST_F(SkippedCheckpoints, AStopAfterTheNextOneLosesNothing) {
  Damage(2, {20, 30}, 20);
  w_.Do(PauseJob{id_});
  w_.Checkpoint(id_, 25);
  w_.Report(id_, RANK_STATE_EXITED, RankExit::STOPPED);
  w_.Restart();
  w_.Return(Hello("n", 1));
  w_.Do(ResumeJob{id_});
  ASSERT_EQ(w_.Newest(id_).number(), 3u);
  EXPECT_EQ(w_.Newest(id_).resume_from().step(), 25u);
  EXPECT_EQ(w_.Newest(id_).resume_from().generation(), 2u);
}

// A damaged one in the list would take the place of one that is whole.
TEST_F(SkippedCheckpoints, AreNotCountedAmongThoseToKeep) {
  Damage(3, {10, 20, 30}, 10);
  w_.Checkpoint(id_, 25);
  EXPECT_EQ(PublishedOf(w_.Get(id_)), (StepsAndGenerations{{10, 1}, {25, 2}}));
  w_.Checkpoint(id_, 40);
  EXPECT_EQ(PublishedOf(w_.Get(id_)), (StepsAndGenerations{{10, 1}, {25, 2}, {40, 2}}));
}

TEST_F(SkippedCheckpoints, ARankThatResumesAsExpectedSkipsNone) {
  Damage(2, {20, 30}, 30);
  EXPECT_EQ(w_.events, std::vector<std::string>{"job.running"});
  w_.Checkpoint(id_, 40);
  EXPECT_EQ(PublishedOf(w_.Get(id_)), (StepsAndGenerations{{30, 1}, {40, 2}}));
}

TEST(Core, ANodeThatStaysAwayIsLost) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  w.Do(NodeDisconnected{NodeId("n"), Incarnation("i1")});
  EXPECT_EQ(w.State(id), JOB_STATE_RUNNING);
  EXPECT_EQ(w.core->ListNodes()[0].slots(0).state(), SLOT_STATE_UNKNOWN);
  w.clock.JumpWall(absl::Hours(100));  // no decision uses wall time
  w.Do(Tick{});
  EXPECT_EQ(w.State(id), JOB_STATE_RUNNING);
  w.clock.Advance(absl::Seconds(11));
  w.Do(Tick{});
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  EXPECT_EQ(w.Newest(id).reason(), END_REASON_LOST);
  // It returns with its rank, which is no longer desired.
  w.Return(Hello("n", 1));
  EXPECT_EQ(w.core->DesiredFor(NodeId("n")).ranks_size(), 0);
  w.PassBackoff();
  EXPECT_EQ(w.core->DesiredFor(NodeId("n")).ranks(0).key().generation(), 2u);
}

TEST(Core, ANodeThatReturnsInTimeKeepsItsRanks) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  w.Do(NodeDisconnected{NodeId("n"), Incarnation("i1")});
  w.Do(NodeConnected{Hello("n", 1, "i2")});  // the daemon was restarted
  w.Report(id, RANK_STATE_RUNNING, RankExit::CAUSE_UNSPECIFIED, /*full=*/true);
  w.Do(NodeDisconnected{NodeId("n"), Incarnation("i1")});  // late, from the previous incarnation
  w.clock.Advance(absl::Minutes(1));
  w.Do(Tick{});
  EXPECT_EQ(w.State(id), JOB_STATE_RUNNING);
  EXPECT_EQ(w.Newest(id).number(), 1u);
}

TEST(Core, ARankMissingFromAFullReportHasVanished) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  NodeObserved nothing{NodeId("n"), Incarnation("i1"), {}};
  nothing.observed.set_full(true);
  w.Do(nothing);
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING) << "it was not started yet, and will be";
  w.Report(id, RANK_STATE_RUNNING);
  w.Do(nothing);
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  EXPECT_EQ(w.Get(id).failure().exit().cause(), RankExit::VANISHED);
}

// Whatever its node forgets. The coordinator may crash at any point in between.
TEST(Core, ARankStartsOnceEvenIfItsNodeForgetsIt) {
  for (const bool crash_before_report : {false, true}) {
    World w;
    w.Do(NodeConnected{Hello("n", 1)});
    const JobId id = w.Submit(Spec("a"));  // it was sent and spawned, but not reported yet
    w.Restart();
    Node rebooted = Hello("n", 1, "i2");
    rebooted.set_boot_id("boot 2");
    w.Do(NodeConnected{rebooted});
    if (crash_before_report) {
      w.Restart();
      w.Do(NodeConnected{rebooted});
    }
    EXPECT_FALSE(w.core->HasReported(NodeId("n"))) << "the rank must not be sent before";
    EXPECT_EQ(w.State(id), JOB_STATE_STARTING);
    w.ReportNothing("n", "i2");
    EXPECT_TRUE(w.core->HasReported(NodeId("n")));
    EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
    EXPECT_EQ(w.Get(id).failure().exit().cause(), RankExit::VANISHED);
    w.PassBackoff();
    EXPECT_EQ(w.Newest(id).number(), 2u);
    w.ReportNothing("n", "i2");  // the same report again
    EXPECT_EQ(w.State(id), JOB_STATE_STARTING) << "which was not sent to it before the reboot";
  }
}

TEST(Core, ADaemonThatWasRestartedAndKnowsNothingHasNotBegun) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Restart();
  w.Return(Hello("n", 1, "i2"));
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING);
  EXPECT_TRUE(w.core->DesiredFor(NodeId("n")).ranks(0).has_run());
}

TEST(Core, ANodeThatIsBackGetsRanksWhenItHasReported) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  w.Do(NodeDisconnected{NodeId("n"), Incarnation("i1")});
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  const Outcome out = w.ReportNothing("n");
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING);
  EXPECT_TRUE(std::holds_alternative<SendDesired>(out.actions.back()));
}

TEST(Core, TwoDaemonsOfOneIdOrDevice) {
  World w;
  Node a = Hello("n", 1);
  a.mutable_slots(0)->set_device_uuid("GPU-1");
  w.Do(NodeConnected{a});
  Node same_host = a;
  same_host.set_incarnation("i2");
  const Outcome replaced = w.Do(NodeConnected{same_host});
  EXPECT_TRUE(replaced.status.ok());
  EXPECT_TRUE(std::holds_alternative<CloseStream>(replaced.actions[0]));
  Node other_host = a;
  other_host.set_hostname("elsewhere");
  other_host.set_incarnation("i3");
  const absl::Status id_taken = w.Do(NodeConnected{other_host}).status;
  EXPECT_EQ(id_taken.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(absl::StrContains(id_taken.message(), "n.host"));
  Node other = Hello("m", 1);
  other.mutable_slots(0)->set_device_uuid("GPU-1");
  EXPECT_EQ(w.Do(NodeConnected{other}).status.code(), absl::StatusCode::kAlreadyExists);
  NodeObserved stale{NodeId("n"), Incarnation("i1"), {}};
  EXPECT_EQ(w.Do(stale).status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Core, DrainMovesJobsAway) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  EXPECT_TRUE(w.Do(DrainNode{NodeId("n")}).status.ok());
  EXPECT_TRUE(w.core->DesiredFor(NodeId("n")).ranks(0).stop().checkpoint_first());
  w.Report(id, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  EXPECT_EQ(w.Newest(id).reason(), END_REASON_DRAINED);
  w.Do(NodeConnected{Hello("m", 1)});
  EXPECT_EQ(w.Newest(id).ranks(0).node(), "m");
  w.Do(UndrainNode{NodeId("n")});
  EXPECT_FALSE(w.core->GetNode(NodeId("n"))->draining());
  EXPECT_EQ(w.Do(DrainNode{NodeId("x")}).status.code(), absl::StatusCode::kNotFound);
}

TEST(Core, ARankThatNeverStartsFailsAtItsDeadline) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a", 0, 0));
  w.clock.Advance(absl::Minutes(5));
  w.Do(Tick{});
  EXPECT_EQ(w.State(id), JOB_STATE_STOPPING);
  w.Report(id, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(id), JOB_STATE_FAILED);
  EXPECT_TRUE(absl::StrContains(w.Get(id).failure().exit().message(), "rank 0 on n"))
      << w.Get(id).failure().exit().message();
}

TEST(Core, DeleteForgetsAnEndedJob) {
  World w;
  const JobId id = w.Submit(Spec("a"));
  EXPECT_EQ(w.Do(DeleteJob{id}).status.code(), absl::StatusCode::kFailedPrecondition);
  w.Do(CancelJob{id});
  const Outcome out = w.Do(DeleteJob{id});
  EXPECT_TRUE(std::holds_alternative<ForgetJob>(out.actions[0]));
  EXPECT_TRUE(w.rows.empty());
  EXPECT_TRUE(w.Do(DeleteJob{id}).status.ok()) << "a retry";
}

TEST(Core, FindTakesUniquePrefixes) {
  World w;
  const JobId a = w.Submit(Spec("alpha"));
  w.Submit(Spec("beta"));
  w.Submit(Spec("beta"));
  EXPECT_EQ(*w.core->Find("al"), a);
  EXPECT_EQ(w.core->Find("beta").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(w.core->Find("gamma").status().code(), absl::StatusCode::kNotFound);
}

TEST(Core, APassedBackoffAsksForNoMoreTicks) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId failed = w.Submit(Spec("a")), other = w.Submit(Spec("b"));
  w.Report(failed, RANK_STATE_EXITED, RankExit::FAILED);
  w.Report(other, RANK_STATE_RUNNING);  // it has the slot now
  EXPECT_TRUE(
      absl::StrContains(w.Get(failed).reason(), "waiting for its restart backoff to end; restart 1 of 3 after: "))
      << w.Get(failed).reason();
  w.PassBackoff();
  ASSERT_TRUE(w.core->NextTick().has_value());
  EXPECT_EQ(*w.core->NextTick() - w.clock.Read().steady, w.options.store_times_every)
      << "otherwise the shell would spin";
  EXPECT_TRUE(absl::StrContains(w.Get(failed).reason(), "0 of 1 free")) << w.Get(failed).reason();
}

TEST(Core, ARepeatedReportChangesNothing) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  w.Do(PauseJob{id});
  EXPECT_TRUE(w.Do(PauseJob{id}).events.empty());
  w.Do(CancelJob{id});
  const Outcome again = w.Do(CancelJob{id});
  EXPECT_TRUE(again.status.ok());
  EXPECT_TRUE(again.events.empty() && again.rows.empty() && again.actions.empty());
}

// Without checkpoints the second attempt starts over: how far the first one came says nothing about it.
TEST(Core, AnEarlierGenerationsStepsDoNotCompleteTheJob) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  JobSpec spec = Spec("a");
  spec.mutable_train()->clear_checkpoint();
  const JobId id = w.Submit(spec);
  RankRecord last{{id, 1, 0}, {}};
  last.record.mutable_metrics()->set_step(100);
  w.Do(last);
  w.Report(id, RANK_STATE_EXITED, RankExit::FAILED);
  w.PassBackoff();
  w.Report(id, RANK_STATE_RUNNING);
  w.Do(CancelJob{id});
  w.Report(id, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(id), JOB_STATE_CANCELLED);
}

TEST(Core, ARankThatIsToStopAndWasNeverStartedHasEnded) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Do(NodeDisconnected{NodeId("n"), Incarnation("i1")});  // before it received its desired state
  w.Do(CancelJob{id});
  w.Do(NodeConnected{Hello("n", 1)});
  EXPECT_EQ(w.State(id), JOB_STATE_STOPPING);
  NodeObserved nothing{NodeId("n"), Incarnation("i1"), {}};
  nothing.observed.set_full(true);
  w.Do(nothing);
  EXPECT_EQ(w.State(id), JOB_STATE_CANCELLED);
}

}  // namespace
}  // namespace muster::core
