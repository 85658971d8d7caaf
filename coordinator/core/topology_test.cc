// Jobs that say how their ranks lie on nodes: spread or packed, and near each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/core.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TopologyWorld : public ::testing::Test {
 protected:
  TopologyWorld() : w_(AnyWorld()) {}
  void Join(const std::string& id, int slots, const std::vector<std::string>& labels) {
    Node node = Hello(id, slots);
    for (const std::string& label : labels) node.add_labels(label);
    ASSERT_TRUE(w_.Return(node).status.ok());
  }
  static JobSpec Near(const std::string& name, uint32_t ranks, const std::string& required,
                      const std::vector<std::string>& preferred = {}) {
    JobSpec spec = Gang(name, ranks);
    Topology& topology = *spec.mutable_resources()->mutable_topology();
    topology.set_required(required);
    for (const std::string& key : preferred) topology.add_preferred(key);
    return spec;
  }
  std::vector<std::string> NodesOf(const JobId& id) {
    std::vector<std::string> nodes;
    const Generation newest = w_.Newest(id);
    for (const RankPlacement& rank : newest.ranks()) nodes.push_back(rank.node());
    return nodes;
  }
  World w_;
};

TEST_F(TopologyWorld, ARequiredRackIsOneRackOrTheJobWaits) {
  Join("a", 3, {"rack=1"}), Join("b", 2, {"rack=1"}), Join("c", 2, {"rack=2"}), Join("d", 2, {"rack=2"});
  Join("e", 8, {});  // in no rack
  const JobId first = w_.Submit(Near("first", 4, "rack"));
  EXPECT_THAT(NodesOf(first), ElementsAre("c", "c", "d", "d")) << "of the racks that hold it the fullest";
  EXPECT_THAT(w_.Get(first).reason(), HasSubstr(", rack 2"));
  const JobId second = w_.Submit(Near("second", 5, "rack"));
  EXPECT_EQ(w_.State(second), JOB_STATE_STARTING);
  const JobId third = w_.Submit(Near("third", 3, "rack"));
  EXPECT_EQ(w_.State(third), JOB_STATE_QUEUED);
  EXPECT_THAT(w_.Get(third).reason(),
              HasSubstr("needs 3 slots, all on nodes with the same rack, at most 0 free on one (in use: "));
  const JobId other = w_.Submit(Gang("other", 8));
  EXPECT_EQ(w_.State(other), JOB_STATE_STARTING) << "it holds back no job that does not need its rack";
  for (uint32_t rank = 0; rank < 4; ++rank) w_.FinishRank(first, rank);
  EXPECT_THAT(NodesOf(third), ElementsAre("c", "c", "d"));
  const JobId never = w_.Submit(Near("never", 6, "rack"));
  EXPECT_THAT(w_.Get(never).reason(), HasSubstr("can never start on these nodes: needs 6 slots"));
  EXPECT_THAT(w_.Get(never).reason(), HasSubstr("the largest rack has 5"));
}

TEST_F(TopologyWorld, OneNodeIsATopologyToo) {
  Join("a", 2, {}), Join("b", 3, {});
  EXPECT_THAT(NodesOf(w_.Submit(Near("one", 2, "node"))), ElementsAre("a", "a"));
  EXPECT_EQ(w_.State(w_.Submit(Near("two", 4, "node"))), JOB_STATE_QUEUED);
}

TEST_F(TopologyWorld, APreferredSwitchIsTakenIfThatIsPossible) {
  Join("a", 2, {"switch=s1", "rack=1"}), Join("b", 2, {"switch=s2", "rack=1"});
  Join("c", 2, {"switch=s3", "rack=2"}), Join("d", 1, {"switch=s3", "rack=2"});
  const JobId first = w_.Submit(Near("first", 3, "", {"switch", "rack"}));
  EXPECT_THAT(NodesOf(first), ElementsAre("c", "c", "d"));
  EXPECT_THAT(w_.Get(first).reason(), HasSubstr(", switch s3, rack 2"));
  const JobId second = w_.Submit(Near("second", 3, "", {"switch", "rack"}));
  EXPECT_THAT(NodesOf(second), ElementsAre("a", "a", "b")) << "no switch has three slots, but a rack has";
  EXPECT_THAT(w_.Get(second).reason(), HasSubstr(", switch s1 and s2, rack 1"));
}

// What `muster plan` shows is what submit does.
TEST_F(TopologyWorld, PlansPlaceAsSubmitDoes) {
  for (int n = 0; n < 6; ++n) Join(absl::StrCat("n", n), 3, {absl::StrCat("rack=", n / 2)});
  JobSpec spread = Gang("spread", 6), packed = Gang("packed", 3);
  spread.mutable_resources()->set_placement(NODE_PLACEMENT_SPREAD);
  packed.mutable_resources()->set_placement(NODE_PLACEMENT_PACK);
  const std::vector<JobSpec> specs = {spread, packed, Near("near", 3, "rack"), Near("nearer", 4, "", {"node", "rack"})};
  std::vector<size_t> nodes;
  for (const JobSpec& spec : specs) {
    const Core::Placing placing = w_.core->WouldPlace(spec);
    std::vector<std::string> planned;
    for (const NodeId& node : placing.nodes) planned.push_back(node.value());
    const JobId id = w_.Submit(spec);
    EXPECT_EQ(NodesOf(id), planned) << spec.name();
    EXPECT_EQ(placing.domains.empty(), !spec.resources().has_topology());
    EXPECT_THAT(w_.Get(id).reason(), HasSubstr(placing.domains));
    nodes.push_back(std::set<std::string>(planned.begin(), planned.end()).size());
  }
  EXPECT_THAT(nodes, ElementsAre(6, 2, 2, 2)) << "6 spread, one slot on each; then at most 2 free on each node";
  EXPECT_EQ(w_.core->WouldPlace(Near("full", 9, "rack")).reason,
            "can never start on these nodes: needs 9 slots, all on nodes with the same rack, the largest rack has 6");
}

// A node that lacks what a job needs: the job waits for another rack that could hold it, and fails where there is none.
TEST_F(TopologyWorld, AJobThatANodeRejectsNeedsAnotherRackThatHoldsIt) {
  for (const int slots : {2, 1}) {
    World w(AnyWorld());
    Node a = Hello("a", 2), b = Hello("b", 1), c = Hello("c", slots);
    a.add_labels("rack=1"), b.add_labels("rack=2"), c.add_labels("rack=3");
    w.Return(a), w.Return(b);
    const JobId id = w.Submit(Near("job", 2, "rack"));
    ASSERT_EQ(w.Newest(id).ranks(0).node(), "a");
    w.Return(c);
    NodeObserved event{NodeId("a"), Incarnation("i1"), {}};
    for (uint32_t number = 0; number < 2; ++number) {
      ObservedRank& rank = *event.observed.add_ranks();
      rank.mutable_key()->set_job(id.value());
      rank.mutable_key()->set_generation(1);
      rank.mutable_key()->set_rank(number);
      rank.set_state(RANK_STATE_EXITED);
      rank.mutable_exit()->set_cause(RankExit::REFUSED);
      rank.mutable_exit()->set_of_node(true);
      rank.mutable_exit()->set_message("no such file: /data");
    }
    w.Do(event);
    if (slots == 2) {
      EXPECT_EQ(w.Newest(id).ranks(0).node(), "c") << w.Get(id).reason();
    } else {
      EXPECT_EQ(w.State(id), JOB_STATE_FAILED) << "racks 2 and 3 have two slots together";
      EXPECT_THAT(w.Get(id).reason(), HasSubstr("no other node can run it"));
    }
  }
}

}  // namespace
}  // namespace muster::core
