// What workers find when they check their machines, and what is kept of faults over a restart of the coordinator.
#include "coordinator/core/node_health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/node/not_ready.h"
#include "common/proto_time.h"
#include "coordinator/core/core.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

using ::testing::HasSubstr;

Preflight Found(uint64_t number, const std::string& problem = "") {
  Preflight preflight;
  preflight.set_number(number);
  *preflight.mutable_time() = ToProto(absl::FromUnixSeconds(1));
  PreflightCheck& check = *preflight.add_checks();
  check.set_name("disk");
  check.set_problem(problem);
  check.set_result("402 GiB free");
  return preflight;
}

class NodeHealthTest : public testing::Test {
 protected:
  void Connect(const std::string& node, const std::optional<Preflight>& preflight,
               const std::string& incarnation = "i1") {
    NodeConnected event{Hello(node, 1, incarnation)};
    event.preflight = preflight;
    w_.Do(event);
    NodeObserved full{NodeId(node), Incarnation(incarnation), {}};
    full.observed.set_full(true);
    w_.Do(full);
  }
  void Check(const std::string& node, const Preflight& preflight, const std::string& incarnation = "i1") {
    NodeObserved event{NodeId(node), Incarnation(incarnation), {}};
    *event.observed.mutable_preflight() = preflight;
    w_.Do(event);
    w_.Do(Tick{});
  }
  // A rank of a new job of one slot is killed by a signal on the node that it was placed on.
  void CrashOne() {
    const JobId id = w_.Submit(Spec(absl::StrCat("crash", crashes_++), 0, /*max_restarts=*/0));
    ASSERT_EQ(w_.State(id), JOB_STATE_STARTING) << w_.Get(id).reason();
    const Generation g = w_.Newest(id);
    const NodeId node(g.ranks(0).node());
    NodeObserved event{node, Incarnation(w_.core->GetNode(node)->incarnation()), {}};
    ObservedRank& rank = *event.observed.add_ranks();
    rank.mutable_key()->set_job(id.value());
    rank.mutable_key()->set_generation(g.number());
    rank.set_state(RANK_STATE_EXITED);
    rank.mutable_exit()->set_cause(RankExit::FAILED);
    rank.mutable_exit()->set_signal(11);
    rank.mutable_exit()->set_message("rank 0 was killed by signal 11");
    w_.Do(event);
  }
  int64_t CountOf(const std::string& kind) const { return std::count(w_.events.begin(), w_.events.end(), kind); }
  Node At(const std::string& node) { return *w_.core->GetNode(NodeId(node)); }

  World w_{AnyWorld()};
  int crashes_ = 0;
};

TEST_F(NodeHealthTest, NoRankIsPlacedBeforeTheFirstPreflight) {
  Connect("a", Preflight());
  const JobId id = w_.Submit(Spec("j"));
  EXPECT_EQ(w_.State(id), JOB_STATE_QUEUED);
  EXPECT_THAT(w_.Get(id).reason(), HasSubstr("1 node is not ready"));
  Check("a", Found(0));
  EXPECT_EQ(w_.State(id), JOB_STATE_STARTING);
  EXPECT_EQ(CountOf("node.ready") + CountOf("node.unready"), 0) << "nothing was wrong";
}

TEST_F(NodeHealthTest, ANodeWithAProblemTakesRanksWhenItIsOver) {
  Connect("a", Found(0, "3 MiB free in /var/lib/muster"));
  EXPECT_EQ(CountOf("node.unready"), 1);
  const JobId id = w_.Submit(Spec("j"));
  EXPECT_EQ(w_.State(id), JOB_STATE_QUEUED);
  EXPECT_THAT(w_.Get(id).reason(), HasSubstr("1 node is not ready (a: disk: 3 MiB free in /var/lib/muster)"));
  EXPECT_EQ(NotReady(At("a")), "disk: 3 MiB free in /var/lib/muster");
  // The same again is no news; nor does a restart of either daemon make the node better.
  Check("a", Found(0, "3 MiB free in /var/lib/muster"));
  EXPECT_EQ(CountOf("node.unready"), 1);
  w_.Restart();
  EXPECT_EQ(NotReady(At("a")), "disk: 3 MiB free in /var/lib/muster");
  Connect("a", Preflight(), "i2");
  EXPECT_EQ(w_.State(id), JOB_STATE_QUEUED);
  EXPECT_EQ(NotReady(At("a")), "disk: 3 MiB free in /var/lib/muster") << "the new daemon has not found it to be over";
  Check("a", Found(0), "i2");
  EXPECT_EQ(CountOf("node.ready"), 1);
  EXPECT_EQ(w_.State(id), JOB_STATE_STARTING);
}

// The worker starts no rank whose files would not fit. That costs the job no restart, and it waits for room.
TEST_F(NodeHealthTest, ARankThatItsWorkerCouldNotTakeIsNoFault) {
  Connect("a", Found(0));
  const JobId id = w_.Submit(Spec("j"));
  ASSERT_EQ(w_.State(id), JOB_STATE_STARTING);
  Check("a", Found(0, "3 MiB free in /var/lib/muster-run"));
  w_.ReportRank(id, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w_.State(id), JOB_STATE_QUEUED);
  EXPECT_EQ(w_.Newest(id).reason(), END_REASON_DRAINED);
  EXPECT_EQ(w_.Get(id).restarts(), 0u);
  w_.PassBackoff();
  EXPECT_EQ(w_.State(id), JOB_STATE_QUEUED);
  Check("a", Found(0));
  EXPECT_EQ(w_.State(id), JOB_STATE_STARTING);
}

TEST_F(NodeHealthTest, WorkersThatReportNoneTakeRanks) {
  Connect("a", std::nullopt);
  const JobId id = w_.Submit(Spec("j"));
  EXPECT_EQ(w_.State(id), JOB_STATE_STARTING);
}

// One job may be at fault itself; when a second one fails on the node, the machine is checked before the next rank.
TEST_F(NodeHealthTest, FaultsOfTwoJobsAskForAPreflight) {
  Connect("a", Found(0));
  CrashOne();
  EXPECT_EQ(At("a").wanted_preflight(), 0u);
  CrashOne();
  EXPECT_EQ(At("a").wanted_preflight(), 1u);
  EXPECT_EQ(w_.core->DesiredFor(NodeId("a")).preflight(), 1u);
  const JobId id = w_.Submit(Spec("j"));
  EXPECT_EQ(w_.State(id), JOB_STATE_QUEUED);
  w_.Restart();
  Connect("a", Found(0), "i2");
  EXPECT_EQ(w_.State(id), JOB_STATE_STARTING) << "a new daemon has checked the machine at its start";
}

TEST_F(NodeHealthTest, ThePreflightAfterFaultsReleasesTheNode) {
  Connect("a", Found(0));
  CrashOne();
  CrashOne();
  const JobId id = w_.Submit(Spec("j"));
  ASSERT_EQ(w_.State(id), JOB_STATE_QUEUED);
  Check("a", Found(1));
  EXPECT_EQ(w_.State(id), JOB_STATE_STARTING);
}

// Without it the worker checks again within a minute.
TEST_F(NodeHealthTest, UndrainAsksANodeWithAProblemToCheckAtOnce) {
  Connect("a", Found(0, "3 MiB free"));
  w_.Do(UndrainNode{NodeId("a")});
  EXPECT_EQ(w_.core->DesiredFor(NodeId("a")).preflight(), 1u);
  Check("a", Found(1, "3 MiB free"));
  w_.Do(UndrainNode{NodeId("a")});
  EXPECT_EQ(w_.core->DesiredFor(NodeId("a")).preflight(), 2u);
  Check("a", Found(2));
  w_.Do(UndrainNode{NodeId("a")});
  EXPECT_EQ(w_.core->DesiredFor(NodeId("a")).preflight(), 2u) << "there is nothing to check";
}

TEST_F(NodeHealthTest, ARestartOfTheCoordinatorForgetsNoFault) {
  Connect("a", std::nullopt);
  CrashOne();
  CrashOne();
  EXPECT_EQ(At("a").recent_faults(), 2u);
  w_.Restart();
  ASSERT_EQ(At("a").recent_faults(), 2u);
  EXPECT_EQ(At("a").faults(1).what(), "rank 0 was killed by signal 11");
  Connect("a", std::nullopt, "i2");
  EXPECT_EQ(CountOf("node.faulty"), 0);
  CrashOne();  // the third; the only node is not drained
  EXPECT_EQ(CountOf("node.faulty"), 1);
}

TEST_F(NodeHealthTest, OldFaultsAreForgottenWithoutANewOne) {
  Connect("a", std::nullopt);
  CrashOne();
  w_.clock.Advance(absl::Minutes(11));
  w_.Do(Tick{});
  EXPECT_EQ(At("a").recent_faults(), 0u);
  w_.Restart();
  EXPECT_EQ(At("a").recent_faults(), 0u) << "it was stored";
}

TEST_F(NodeHealthTest, ADifferentClockIsReportedAndChangesNothing) {
  NodeConnected event{Hello("a", 1)};
  event.time = w_.clock.Read().wall + absl::Hours(3);
  w_.Do(event);
  EXPECT_EQ(CountOf("node.clock"), 1);
  event.node.set_id("b");
  event.time = w_.clock.Read().wall - absl::Seconds(59);
  w_.Do(event);
  EXPECT_EQ(CountOf("node.clock"), 1);
}

}  // namespace
}  // namespace muster::core
