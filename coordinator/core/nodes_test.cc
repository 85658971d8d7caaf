// Nodes that become silent, one or many at once: which are marked lost, and when.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

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
  // Ticks whenever one is due, for this long.
  void Pass(absl::Duration time) {
    const SteadyTime end = w_.clock.Read().steady + time;
    while (true) {
      const auto next = w_.core->NextTick();
      if (!next.has_value() || *next > end) break;
      w_.clock.Advance(std::max(absl::ZeroDuration(), *next - w_.clock.Read().steady));
      w_.Do(Tick{});
      ++ticks_;
    }
    w_.clock.Advance(end - w_.clock.Read().steady);
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
  int ticks_ = 0;
};

TEST_F(SilentNodes, AFewAreLost) {
  Silence(3);
  Pass(absl::Seconds(9));
  EXPECT_EQ(Lost(), 0);
  Pass(absl::Seconds(2));
  EXPECT_EQ(Lost(), 3) << "three of ten are not more than 30%";
  EXPECT_EQ(CountOf("node.spared"), 0);
}

TEST_F(SilentNodes, ManyAtOnceAreSparedAndTheirRanksContinue) {
  Silence(7);
  Pass(absl::Seconds(280));
  EXPECT_EQ(Lost(), 0);
  EXPECT_EQ(CountOf("node.spared"), 7) << "each once";
  for (int node = 0; node < 7; ++node) w_.Do(NodeConnected{Hello(Name(node), 1)});
  Pass(absl::Minutes(1));
  EXPECT_EQ(CountOf("node.lost"), 0);
  EXPECT_EQ(w_.State(id_), JOB_STATE_RUNNING);
}

// Regardless of how many there are and when each went away.
TEST_F(SilentNodes, SparedNodesAreCheckedTogetherOnceASecond) {
  for (int node = 0; node < 7; ++node) {
    w_.Do(NodeDisconnected{NodeId(Name(node)), Incarnation("i1")});
    w_.clock.Advance(absl::Milliseconds(130));
  }
  Pass(absl::Seconds(20));
  ticks_ = 0;
  Pass(absl::Seconds(60));
  EXPECT_LE(ticks_, 61);
  EXPECT_GE(ticks_, 59);
}

TEST_F(SilentNodes, SparedNodesAreLostInTheEnd) {
  Silence(7);
  Pass(absl::Seconds(299));
  EXPECT_EQ(Lost(), 0);
  Pass(absl::Seconds(2));
  EXPECT_EQ(Lost(), 7);
  EXPECT_EQ(CountOf("node.lost"), 7);
}

TEST_F(SilentNodes, WhenMostAreBackTheOthersAreLost) {
  Silence(7);
  Pass(absl::Seconds(60));
  for (int node = 1; node < 7; ++node) w_.Do(NodeConnected{Hello(Name(node), 1)});
  Pass(absl::Seconds(2));
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

}  // namespace
}  // namespace muster::core
