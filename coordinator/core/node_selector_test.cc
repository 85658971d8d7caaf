// Jobs that run on some nodes only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "coordinator/core/core.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

using ::testing::HasSubstr;

Node Labelled(const std::string& id, int slots, const std::string& label, const std::string& incarnation = "i1") {
  Node node = Hello(id, slots, incarnation);
  node.add_labels(label);
  return node;
}

JobSpec On(const std::string& name, uint32_t ranks, const std::string& requirement) {
  JobSpec spec = Gang(name, ranks);
  spec.mutable_resources()->add_node_selector(requirement);
  return spec;
}

int RanksOn(const World& w, const std::string& node) { return w.core->DesiredFor(NodeId(node)).ranks_size(); }

TEST(NodeSelectors, JobsGetOnlyNodesThatSatisfyThem) {
  World w(AnyWorld());
  w.Do(NodeConnected{Labelled("a", 4, "rack=1")});
  w.Do(NodeConnected{Labelled("b", 2, "rack=2")});
  const JobId second = w.Submit(On("second", 2, "rack=2"));
  EXPECT_EQ(RanksOn(w, "a"), 0);
  EXPECT_EQ(RanksOn(w, "b"), 2);
  const JobId full = w.Submit(On("full", 1, "rack=2"));
  EXPECT_EQ(w.State(full), JOB_STATE_QUEUED);
  EXPECT_THAT(w.Get(full).reason(), HasSubstr("only on nodes with rack=2"));
  // It is the first that waits, but holds back no job on the others.
  const JobId other = w.Submit(On("other", 3, "node!=b"));
  EXPECT_EQ(w.State(other), JOB_STATE_STARTING);
  EXPECT_EQ(RanksOn(w, "a"), 3);
  const JobId never = w.Submit(On("never", 3, "rack=2"));
  EXPECT_THAT(w.Get(never).reason(), HasSubstr("can never start on these nodes"));
  for (uint32_t rank = 0; rank < 2; ++rank) w.FinishRank(second, rank);
  EXPECT_EQ(w.State(full), JOB_STATE_STARTING);
  EXPECT_EQ(RanksOn(w, "b"), 1);
}

TEST(NodeSelectors, ANodeThatComesBackHasTheLabelsThatItHasThen) {
  World w(AnyWorld());
  w.Do(NodeConnected{Labelled("a", 1, "rack=1")});
  const JobId id = w.Submit(On("job", 1, "rack=2"));
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  w.Do(NodeConnected{Labelled("a", 1, "rack=2", "i2")});
  w.ReportNothing("a", "i2");
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING) << w.Get(id).reason();
}

TEST(NodeSelectors, AWorkerCannotSayThatItIsAnotherNode) {
  World w(AnyWorld());
  EXPECT_EQ(w.Do(NodeConnected{Labelled("a", 1, "node=b")}).status.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster::core
