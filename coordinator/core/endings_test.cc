// What jobs and generations end as, and what users are shown about jobs that cannot go on.
#include <gmock/gmock.h>

#include "common/rank_exit.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// The job's only rank ended because its loss was not finite.
void Diverge(World& w, const JobId& id) { w.Fail(id, kNonFiniteExitCode, ": rank 0, step 12: the loss is nan"); }

TEST(Endings, APauseEndsAGenerationAsPaused) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  w.Do(PauseJob{id});
  w.Report(id, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(id), JOB_STATE_PAUSED);
  EXPECT_EQ(w.Newest(id).reason(), END_REASON_PAUSED);
  EXPECT_EQ(w.Get(id).restarts(), 0u);
  w.Do(ResumeJob{id});
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING);
}

TEST(Endings, ReasonsDoNotRepeatTheState) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId ran = w.Submit(Spec("a"));
  const JobId waited = w.Submit(Spec("b"));
  w.Report(ran, RANK_STATE_RUNNING);
  w.Do(CancelJob{waited});
  EXPECT_EQ(w.Get(waited).reason(), "cancelled before it started");
  w.Do(CancelJob{ran});
  w.Report(ran, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(ran), JOB_STATE_CANCELLED);
  EXPECT_EQ(w.Get(ran).reason(), "");
  const JobId failed = w.Submit(Spec("c", 0, 0));
  w.Report(failed, RANK_STATE_EXITED, RankExit::FAILED);
  EXPECT_EQ(w.Get(failed).reason(), "rank 0 was killed by signal 9 (SIGKILL)");
}

TEST(Endings, ASecondNonFiniteLossWithoutProgressIsFinal) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a", 0, /*max_restarts=*/3));
  w.Report(id, RANK_STATE_RUNNING);
  w.Checkpoint(id, 10);
  Diverge(w, id);
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED) << "the first may be a fault of the machine";
  w.PassBackoff();
  w.Report(id, RANK_STATE_RUNNING);
  Diverge(w, id);
  EXPECT_EQ(w.State(id), JOB_STATE_FAILED);
  EXPECT_EQ(w.Get(id).restarts(), 1u);
  EXPECT_THAT(w.Get(id).reason(), HasSubstr("not restarted again: a restart from step 10 diverged in the same way"));
}

TEST(Endings, OtherFaultsAndProgressBetweenKeepTheRestarts) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a", 0, /*max_restarts=*/3));
  w.Report(id, RANK_STATE_RUNNING);
  Diverge(w, id);
  w.PassBackoff();
  w.Report(id, RANK_STATE_RUNNING);
  w.Checkpoint(id, 20);  // it came further
  Diverge(w, id);
  w.PassBackoff();
  w.Report(id, RANK_STATE_EXITED, RankExit::FAILED);  // a signal
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  w.PassBackoff();
  Diverge(w, id);
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED) << "the generation before ended for another reason";
}

// `muster cancel b` means the job that can be cancelled, `muster delete b` the one that can be deleted.
TEST(Endings, APrefixMeansTheJobThatTheRequestFits) {
  using Among = Core::Among;
  World w;
  const JobId ended = w.Submit(Spec("b")), live = w.Submit(Spec("b"));
  w.Do(CancelJob{ended});
  EXPECT_EQ(w.core->FindReplicas("b").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(w.core->FindReplicas("b", Among::kLive).value(), std::vector<JobId>{live});
  EXPECT_EQ(w.core->FindReplicas("b", Among::kEnded).value(), std::vector<JobId>{ended});
  EXPECT_EQ(w.core->FindReplicas(ended.value(), Among::kLive).value(), std::vector<JobId>{ended}) << "a whole id";
  w.Submit(Spec("b"));
  const absl::Status several = w.core->FindReplicas("b", Among::kLive).status();
  EXPECT_EQ(several.message(), "b matches 2 jobs: b-s2, b-s3: name one of them");
  for (const char* id : {"b-s2", "b-s3"}) w.Do(CancelJob{JobId(id)});
  const absl::Status none = w.core->FindReplicas("b", Among::kLive).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(none.message(), "no running or queued job begins with b");
  EXPECT_EQ(w.core->FindReplicas("b", Among::kEnded).status().message(),
            "b matches 3 jobs: b-s1, b-s2, b-s3: name one of them");
}

// `muster cancel b` never stops b-large because b has ended.
TEST(Endings, ANameMeansTheJobsThatHaveIt) {
  using Among = Core::Among;
  World w;
  const JobId b = w.Submit(Spec("b")), large = w.Submit(Spec("b-large"));
  EXPECT_EQ(w.core->Find("b").value(), b);
  EXPECT_EQ(w.core->Find("b-l").value(), large) << "the prefix of one";
  w.Do(CancelJob{b});
  EXPECT_EQ(w.core->FindReplicas("b", Among::kLive).value(), std::vector<JobId>{b}) << "which can be refused";
  w.Submit(Spec("b"));
  EXPECT_EQ(w.core->Find("b").status().message(), "b matches 2 jobs: b-s1, b-s3: name one of them");
}

TEST(Endings, AJobThatNoNodesCouldHoldSaysSo) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("n", 2)});
  const JobId id = w.Submit(Gang("a", 100));
  EXPECT_EQ(
      w.Get(id).reason(),
      "1st in the queue: can never start on these nodes: needs 100 slots on cpu, the nodes have 2 in all, 2 free; "
      "at most 2 ranks would fit");
  const JobId busy = w.Submit(Gang("b", 2)), waits = w.Submit(Gang("c", 2));
  w.ReportRank(busy, 0, RANK_STATE_RUNNING);
  w.ReportRank(busy, 1, RANK_STATE_RUNNING);
  w.clock.Advance(absl::Seconds(59));
  EXPECT_THAT(w.Do(Tick{}).events, IsEmpty());
  w.clock.Advance(absl::Seconds(1));
  ASSERT_TRUE(w.IsTickDue());
  const Outcome out = w.Do(Tick{});
  ASSERT_EQ(out.events.size(), 1u) << "not for a job that waits for others: " << waits.value();
  EXPECT_EQ(out.events[0].job(), id.value());
  EXPECT_EQ(out.events[0].kind(), "job.waiting");
  EXPECT_THAT(out.events[0].message(), HasSubstr("a-s1 has waited for 1m: can never start on these nodes"));
  w.Pass(absl::Hours(1));
  EXPECT_EQ(std::count(w.events.begin(), w.events.end(), "job.waiting"), 1) << "once";
  w.Do(NodeConnected{Hello("m", 98)});
  w.ReportNothing("m");
  EXPECT_THAT(w.Get(id).reason(), Not(HasSubstr("can never start")));
  EXPECT_EQ(w.State(busy), JOB_STATE_RUNNING);
}

}  // namespace
}  // namespace muster::core
