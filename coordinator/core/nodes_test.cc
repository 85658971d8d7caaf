// Nodes that become silent, one or many at once: which are marked lost, and when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

constexpr int kNodes = 10;

std::string Name(int node) { return absl::StrCat("n", node); }

// Ten nodes of one slot; a job of ten ranks runs on them. Detection 10 s: a node that is away is lost after 10 s more.
class SilentNodes : public testing::Test {
 protected:
  SilentNodes() {
    for (int node = 0; node < kNodes; ++node) w_.Return(Hello(Name(node), 1));
    id_ = w_.Submit(Gang("g", kNodes));
    for (uint32_t rank = 0; rank < kNodes; ++rank) w_.ReportRank(id_, rank, RANK_STATE_RUNNING);
  }
  void Silence(int nodes) {
    for (int node = 0; node < nodes; ++node) w_.Do(NodeDisconnected{NodeId(Name(node)), Incarnation("i1")});
  }
  int64_t CountOf(const std::string& kind) const { return std::count(w_.events.begin(), w_.events.end(), kind); }
  int Lost() const {
    int lost = 0;
    for (int node = 0; node < kNodes; ++node) {
      lost += w_.core->GetNode(NodeId(Name(node)))->state() == NODE_STATE_LOST ? 1 : 0;
    }
    return lost;
  }

  World w_{AnyWorld()};
  JobId id_;
};

TEST_F(SilentNodes, AFewAreLost) {
  Silence(3);
  w_.Pass(absl::Seconds(9));
  EXPECT_EQ(Lost(), 0);
  w_.Pass(absl::Seconds(2));
  EXPECT_EQ(Lost(), 3) << "three of ten are not more than 30%";
  EXPECT_EQ(CountOf("node.spared"), 0);
}

TEST_F(SilentNodes, ManyAtOnceAreSparedAndTheirRanksContinue) {
  Silence(7);
  w_.Pass(absl::Seconds(280));
  EXPECT_EQ(Lost(), 0);
  EXPECT_EQ(CountOf("node.spared"), 7) << "each once";
  for (int node = 0; node < 7; ++node) w_.Do(NodeConnected{Hello(Name(node), 1)});
  w_.Pass(absl::Minutes(1));
  EXPECT_EQ(CountOf("node.lost"), 0);
  EXPECT_EQ(w_.State(id_), JOB_STATE_RUNNING);
}

// Regardless of how many there are and when each went away.
TEST_F(SilentNodes, SparedNodesAreCheckedTogetherOnceASecond) {
  for (int node = 0; node < 7; ++node) {
    w_.Do(NodeDisconnected{NodeId(Name(node)), Incarnation("i1")});
    w_.clock.Advance(absl::Milliseconds(130));
  }
  w_.Pass(absl::Seconds(20));
  const int ticks = w_.Pass(absl::Seconds(60));
  EXPECT_LE(ticks, 61);
  EXPECT_GE(ticks, 59);
}

TEST_F(SilentNodes, SparedNodesAreLostInTheEnd) {
  Silence(7);
  w_.Pass(absl::Seconds(299));
  EXPECT_EQ(Lost(), 0);
  w_.Pass(absl::Seconds(2));
  EXPECT_EQ(Lost(), 7);
  EXPECT_EQ(CountOf("node.lost"), 7);
}

TEST_F(SilentNodes, WhenMostAreBackTheOthersAreLost) {
  Silence(7);
  w_.Pass(absl::Seconds(60));
  for (int node = 1; node < 7; ++node) w_.Do(NodeConnected{Hello(Name(node), 1)});
  w_.Pass(absl::Seconds(2));
  EXPECT_EQ(Lost(), 1) << "its grace period was over long ago";
}

// In a cluster of one or two nodes, the share of silent nodes says nothing about the network.
TEST(FewNodes, AreLostEvenIfAllAreSilent) {
  World w{AnyWorld()};
  for (int node = 0; node < 2; ++node) w.Return(Hello(Name(node), 1));
  for (int node = 0; node < 2; ++node) w.Do(NodeDisconnected{NodeId(Name(node)), Incarnation("i1")});
  w.clock.Advance(absl::Seconds(11));
  w.Do(Tick{});
  for (int node = 0; node < 2; ++node) EXPECT_EQ(w.core->GetNode(NodeId(Name(node)))->state(), NODE_STATE_LOST);
}

// ---- Stuck slots. ----

NodeObserved StuckOn(const std::string& node, std::vector<uint32_t> slots, const JobId& job, bool full = false) {
  NodeObserved event{NodeId(node), Incarnation("i1"), {}};
  event.observed.set_full(full);
  StuckRanks& stuck = *event.observed.mutable_stuck();
  if (slots.empty()) return event;
  StuckRank& rank = *stuck.add_ranks();
  rank.mutable_key()->set_job(job.value());
  rank.mutable_key()->set_generation(1);
  rank.mutable_slots()->Assign(slots.begin(), slots.end());
  rank.set_processes("process 4711 (state D)");
  return event;
}

TEST(Nodes, ASlotIsNotFreeBeforeItsKilledRankIsGone) {
  World w(AnyWorld());
  w.Return(Hello("a", 1));
  const JobId job = w.Submit(Spec("j"));
  w.Report(job, RANK_STATE_RUNNING);
  w.Do(CancelJob{job});
  w.Do(StuckOn("a", {0}, job));
  w.Report(job, RANK_STATE_EXITED, RankExit::VANISHED);
  EXPECT_EQ(w.State(job), JOB_STATE_CANCELLED) << "the job does not wait for it";
  const Node node = *w.core->GetNode(NodeId("a"));
  EXPECT_EQ(node.slots(0).state(), SLOT_STATE_STUCK);
  EXPECT_EQ(node.slots(0).stuck(), "rank 0 of generation 1 of " + job.value() + ": process 4711 (state D)");
  EXPECT_EQ(node.recent_faults(), 1u);
  const JobId next = w.Submit(Spec("next"));
  EXPECT_EQ(w.State(next), JOB_STATE_QUEUED);
  EXPECT_THAT(w.Get(next).reason(), testing::HasSubstr("1 slot is stuck"));
  // Reports of other things leave it, and so does a restart of the coordinator, since the node reports it in full.
  w.Do(NodeObserved{NodeId("a"), Incarnation("i1"), {}});
  EXPECT_EQ(w.State(next), JOB_STATE_QUEUED);
  w.Restart();
  w.Do(NodeConnected{Hello("a", 1)});
  w.Do(StuckOn("a", {0}, job, /*full=*/true));
  EXPECT_EQ(w.State(next), JOB_STATE_QUEUED);
  w.Do(DeleteJob{job});  // whatever becomes of the job
  EXPECT_EQ(w.State(next), JOB_STATE_QUEUED);
  w.Do(StuckOn("a", {}, job));
  EXPECT_EQ(w.State(next), JOB_STATE_STARTING) << w.Get(next).reason();
  EXPECT_EQ(std::count(w.events.begin(), w.events.end(), "slot.stuck"), 2) << "again after the restart";
  EXPECT_EQ(std::count(w.events.begin(), w.events.end(), "slot.freed"), 1);
}

TEST(Nodes, ManyStuckSlotsAreOneEvent) {
  World w(AnyWorld());
  w.Return(Hello("a", 1000));
  std::vector<uint32_t> slots(1000);
  std::iota(slots.begin(), slots.end(), 0);
  EXPECT_LE(w.Do(StuckOn("a", slots, JobId("j"))).events.size(), 2u);
  EXPECT_LE(w.Do(StuckOn("a", {}, JobId("j"))).events.size(), 2u);
}

// One rank of a stopping generation does not end; the slots of the others are free.
TEST(Nodes, AStoppingGenerationKeepsOnlySlotsOfRanksThatRun) {
  World w(AnyWorld());
  w.Return(Hello("a", 1));
  w.Return(Hello("b", 1));
  const JobId gang = w.Submit(Gang("gang", 2));
  for (const uint32_t rank : {0u, 1u}) w.ReportRank(gang, rank, RANK_STATE_RUNNING);
  const JobId next = w.Submit(Spec("next"));
  w.Do(CancelJob{gang});
  EXPECT_EQ(w.State(next), JOB_STATE_QUEUED);
  w.ReportRank(gang, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(gang), JOB_STATE_STOPPING);
  ASSERT_EQ(w.State(next), JOB_STATE_STARTING) << w.Get(next).reason();
  EXPECT_EQ(w.Newest(next).ranks(0).node(), "a");
  w.Restart();  // the store holds two generations on one slot, of which one needs it
  EXPECT_EQ(w.State(next), JOB_STATE_STARTING);
}

TEST(Nodes, AStopThatIsOverdueIsRepeated) {
  World w(AnyWorld());
  w.Return(Hello("a", 1));
  const JobId job = w.Submit(Spec("j"));
  w.Report(job, RANK_STATE_RUNNING);
  w.Do(CancelJob{job});
  int requests = 0;
  for (int minute = 0; minute < 60; ++minute) {
    w.clock.Advance(absl::Minutes(1));
    for (const Action& action : w.Do(Tick{}).actions) requests += std::holds_alternative<SendDesired>(action);
  }
  EXPECT_GE(requests, 5);
  EXPECT_LE(requests, 12) << "at growing intervals";
  EXPECT_THAT(w.Get(job).reason(), testing::HasSubstr("the stop is overdue, still running: rank 0 on a"));
  w.Report(job, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(job), JOB_STATE_CANCELLED);
}

// ---- Nodes that do not come back. ----

class Lost : public testing::Test {
 protected:
  void Lose(const std::string& node) {
    w_.Do(NodeDisconnected{NodeId(node), Incarnation("i1")});
    for (int i = 0; i < 10 && w_.core->GetNode(NodeId(node))->state() != NODE_STATE_LOST; ++i) {
      w_.clock.Advance(absl::Minutes(1));
      w_.Do(Tick{});
    }
    ASSERT_EQ(w_.core->GetNode(NodeId(node))->state(), NODE_STATE_LOST);
  }
  bool Knows(const std::string& node) { return w_.core->GetNode(NodeId(node)).ok(); }
  World w_{AnyWorld()};
};

TEST_F(Lost, AreForgottenOnRequest) {
  w_.Return(Hello("a", 1));
  w_.Return(Hello("b", 1));
  const JobId job = w_.Submit(Spec("j"));
  ASSERT_EQ(w_.Newest(job).ranks(0).node(), "a");
  EXPECT_TRUE(absl::IsFailedPrecondition(w_.Do(ForgetNode{NodeId("a")}).status)) << "it is live";
  w_.Do(NodeDisconnected{NodeId("a"), Incarnation("i1")});
  EXPECT_TRUE(absl::IsFailedPrecondition(w_.Do(ForgetNode{NodeId("a")}).status)) << "it is away";
  w_.Return(Hello("a", 1));
  Lose("a");
  ASSERT_TRUE(w_.Do(ForgetNode{NodeId("a")}).status.ok());
  EXPECT_FALSE(Knows("a"));
  EXPECT_TRUE(Knows("b"));
  EXPECT_TRUE(w_.Do(ForgetNode{NodeId("a")}).status.ok()) << "a retry";
  w_.Restart();
  EXPECT_FALSE(Knows("a"));
  EXPECT_EQ(w_.core->ListGenerations(job).back().ranks(0).node(), "a") << "history stays";
  w_.Return(Hello("a", 1, "i2"));
  EXPECT_TRUE(Knows("a")) << "it joins again";
}

// Whatever looks at the ranks of a generation finds their nodes, also when the store is opened again.
TEST_F(Lost, AreKnownUntilTheGenerationsOfTheirRanksHaveEnded) {
  w_.options.forget_lost_after = absl::Hours(24);
  w_.Restart();
  w_.Return(Hello("a", 1));
  w_.Return(Hello("b", 1));
  const JobId job = w_.Submit(Gang("g", 2));
  w_.RunAll(job);
  ASSERT_EQ(w_.Newest(job).ranks(0).node(), "a");
  Lose("a");
  ASSERT_EQ(w_.State(job), JOB_STATE_STOPPING) << "the rank on b has not ended";
  const absl::Status refused = w_.Do(ForgetNode{NodeId("a")}).status;
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              testing::HasSubstr("node a had ranks of g-s1, and others of them have not"));
  EXPECT_LT(w_.Pass(absl::Hours(26)), 2000) << "ticks while the node cannot be forgotten";
  EXPECT_TRUE(Knows("a")) << "nor is it forgotten by itself";
  w_.Restart();
  w_.Do(NodeConnected{Hello("b", 1, "i2")});
  w_.Report(job, RANK_STATE_EXITED, RankExit::STOPPED, /*full=*/true, 1);
  ASSERT_NE(w_.State(job), JOB_STATE_STOPPING);
  EXPECT_TRUE(w_.Do(ForgetNode{NodeId("a")}).status.ok());
  EXPECT_FALSE(Knows("a"));
  w_.Restart();
}

TEST_F(Lost, AreForgottenByThemselvesOnceTheGenerationHasEnded) {
  w_.options.forget_lost_after = absl::Hours(24);
  w_.Restart();
  w_.Return(Hello("a", 1));
  w_.Return(Hello("b", 1));
  const JobId job = w_.Submit(Gang("g", 2));
  w_.RunAll(job);
  w_.FinishRank(job, 0);
  Lose("a");
  ASSERT_EQ(w_.State(job), JOB_STATE_RUNNING) << "its rank there has completed";
  w_.Pass(absl::Hours(26));
  EXPECT_TRUE(Knows("a"));
  w_.FinishRank(job, 1);
  ASSERT_EQ(w_.State(job), JOB_STATE_COMPLETED);
  w_.Pass(absl::Minutes(2));
  EXPECT_FALSE(Knows("a"));
}

// In the store of an earlier build, which forgot such a node.
TEST_F(Lost, AStoreWithoutANodeOfExitedRanksOpens) {
  w_.Return(Hello("a", 1));
  w_.Return(Hello("b", 1));
  const JobId job = w_.Submit(Gang("g", 2));
  w_.RunAll(job);
  Lose("a");
  ASSERT_EQ(w_.State(job), JOB_STATE_STOPPING);
  w_.rows.erase("node/a");
  w_.Restart();
  EXPECT_EQ(w_.core->GetNode(NodeId("a"))->state(), NODE_STATE_LOST);
  w_.Do(NodeConnected{Hello("b", 1, "i2")});
  w_.Report(job, RANK_STATE_EXITED, RankExit::STOPPED, /*full=*/true, 1);
  EXPECT_TRUE(w_.Do(ForgetNode{NodeId("a")}).status.ok());
  w_.Return(Hello("a", 1, "i2"));
  w_.PassBackoff();
  EXPECT_EQ(w_.State(job), JOB_STATE_STARTING) << w_.Get(job).reason();
}

// As a node that `muster local` does not start again.
TEST_F(Lost, NodesWithoutRanksAreForgottenWhileTheyAreAway) {
  w_.Return(Hello("a", 1));
  w_.Return(Hello("b", 1));
  const JobId job = w_.Submit(Spec("j"));
  ASSERT_EQ(w_.Newest(job).ranks(0).node(), "a");
  w_.Do(NodeDisconnected{NodeId("a"), Incarnation("i1")});
  w_.Do(NodeDisconnected{NodeId("b"), Incarnation("i1")});
  EXPECT_EQ(w_.Do(ForgetNode{NodeId("a")}).status.message(),
            "node a is away and may still run ranks: forget it when it is lost");
  ASSERT_TRUE(w_.Do(ForgetNode{NodeId("b")}).status.ok());
  EXPECT_TRUE(Knows("a"));
  EXPECT_FALSE(Knows("b"));
  w_.Return(Hello("b", 1, "i2"));
  EXPECT_TRUE(Knows("b")) << "it joins again";
}

TEST_F(Lost, AreForgottenByThemselves) {
  w_.options.forget_lost_after = absl::Hours(24);
  w_.Restart();
  w_.Return(Hello("a", 1));
  w_.Return(Hello("b", 1));
  Lose("a");
  w_.clock.Advance(absl::Hours(23));
  w_.Do(Tick{});
  EXPECT_TRUE(Knows("a"));
  w_.Restart();  // the time begins anew: nothing persistent is a steady instant
  w_.Return(Hello("b", 1));
  w_.clock.Advance(absl::Hours(23));
  w_.Do(Tick{});
  EXPECT_TRUE(Knows("a"));
  ASSERT_TRUE(w_.core->NextTick().has_value());
  w_.clock.Advance(absl::Hours(2));
  w_.Do(Tick{});
  EXPECT_FALSE(Knows("a"));
  EXPECT_TRUE(Knows("b"));
}

TEST_F(Lost, AreKeptForEverIfTheOperatorSaysSo) {
  w_.options.forget_lost_after = absl::InfiniteDuration();
  w_.Restart();
  w_.Return(Hello("a", 1));
  Lose("a");
  w_.clock.Advance(absl::Hours(24 * 365));
  w_.Do(Tick{});
  EXPECT_TRUE(Knows("a"));
}

// Its state folder came along, so it has the node's id; the hostname of a container is new each time.
TEST_F(Lost, ARecreatedContainerIsTheSameNode) {
  w_.Return(Hello("a", 1));
  w_.Do(NodeDisconnected{NodeId("a"), Incarnation("i1")});
  Node recreated = Hello("a", 1, "i2");
  recreated.set_hostname("3f9c1d2e7a55");
  w_.Return(recreated);
  EXPECT_EQ(w_.core->ListNodes().size(), 1u);
  EXPECT_EQ(w_.core->GetNode(NodeId("a"))->state(), NODE_STATE_LIVE);
  EXPECT_EQ(w_.core->GetNode(NodeId("a"))->hostname(), "3f9c1d2e7a55");
}

}  // namespace
}  // namespace muster::core
