#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/scheduler/place.h"
#include "coordinator/scheduler/queue.h"

namespace muster::scheduler {
namespace {

// "a:FFU" is node a with two free slots and a used one; "A:" is the same with cuda slots; a last letter says that it is
// away (-), draining (!) or lost (?).
NodeView Node(const std::string& text) {
  NodeView node;
  const bool cuda = text[0] < 'a';
  node.id = NodeId(text.substr(0, 1));
  for (size_t i = 2; i < text.size(); ++i) {
    if (text[i] == '-') node.availability = Availability::kAway;
    if (text[i] == '!') node.availability = Availability::kDraining;
    if (text[i] == '?') node.availability = Availability::kLost;
    if (node.availability != Availability::kTakesRanks) break;
    SlotView& slot = node.slots.emplace_back();
    slot.index = static_cast<uint32_t>(i - 2);
    slot.device = cuda ? DEVICE_CUDA : DEVICE_CPU;
    if (text[i] != 'F') slot.holder = JobId("other-job");
  }
  return node;
}

std::string Placed(const Decision& d) {
  return absl::StrJoin(d.ranks, " ",
                       [](std::string* out, const RankSlot& r) { absl::StrAppend(out, r.node.value(), r.slot); });
}

TEST(Place, Table) {
  struct Case {
    uint32_t ranks;
    Device device;
    std::vector<std::string> nodes;
    std::string placed, reason;
    bool fits_when_idle;
  };
  const std::vector<Case> cases = {
      {1, DEVICE_AUTO, {"a:F"}, "a0", "", true},
      {1, DEVICE_AUTO, {}, "", "no node has joined yet", false},
      {1, DEVICE_AUTO, {"a:U"}, "", "needs 1 slot, 0 of 1 free (in use: other-job)", true},
      {2, DEVICE_AUTO, {"a:F"}, "", "needs 2 slots on cpu, the nodes have 1 in all", false},
      {2, DEVICE_AUTO, {"a:F", "b:U"}, "", "needs 2 slots, 1 of 2 free (in use: other-job)", true},  // never partly
      {2, DEVICE_AUTO, {"a:FFFF", "b:UFF"}, "b1 b2", "", true},  // the fullest node that holds all
      {3, DEVICE_AUTO, {"a:F", "b:FF"}, "b0 b1 a0", "", true},   // else the emptiest first
      {1, DEVICE_AUTO, {"b:F", "a:F"}, "a0", "", true},          // ties by id
      {1, DEVICE_AUTO, {"a:F", "B:F"}, "B0", "", true},          // auto takes cuda where it is
      {1, DEVICE_AUTO, {"a:F", "B:U"}, "", "needs 1 slot, 0 of 1 free (in use: other-job)", true},
      {1, DEVICE_CPU, {"a:F", "B:F"}, "a0", "", true},
      {1, DEVICE_CUDA, {"a:F"}, "", "needs 1 slot on cuda, the nodes have 0 in all", false},
      {1,
       DEVICE_AUTO,
       {"a:F-", "b:F!", "c:F?"},
       "",
       "needs 1 slot, but no node takes ranks now (1 away, 1 draining, 1 lost)",
       true},
      {2, DEVICE_AUTO, {"a:F-", "b:F"}, "", "needs 2 slots, 1 of 1 free (1 away)", true},  // worth waiting for
      {2, DEVICE_AUTO, {"a:F?", "b:F"}, "", "needs 2 slots on cpu, the nodes have 1 in all (1 lost)", false},
      {1, DEVICE_AUTO, {"a:F", "B:F-"}, "", "needs 1 slot, 0 of 0 free (1 away)", true},  // its GPUs come back
      {1, DEVICE_AUTO, {"a:F", "B:F!"}, "a0", "", true},
  };
  for (const Case& c : cases) {
    std::vector<NodeView> nodes;
    for (const std::string& n : c.nodes) nodes.push_back(Node(n));
    const Decision d = Cluster(nodes).Place({c.ranks, c.device});
    EXPECT_EQ(Placed(d), c.placed);
    EXPECT_EQ(d.reason, c.reason);
    EXPECT_EQ(d.fits_when_idle, c.fits_when_idle) << c.reason;
    if (!d.ranks.empty()) {
      EXPECT_NE(d.device, DEVICE_AUTO);
    }
  }
}

// What is taken from a cluster leaves the same as a cluster that is counted anew.
TEST(Place, TakenSlotsAreNoLongerFree) {
  Cluster cluster({Node("a:FFF"), Node("b:FF")});
  const Decision first = cluster.Place({4, DEVICE_AUTO});
  EXPECT_EQ(Placed(first), "a0 a1 a2 b0");
  cluster.Take(first, JobId("j-1"));
  EXPECT_EQ(cluster.Place({2, DEVICE_AUTO}).reason, "needs 2 slots, 1 of 5 free (in use: j-1)");
  const Decision second = cluster.Place({1, DEVICE_AUTO});
  EXPECT_EQ(Placed(second), "b1");
  for (const char* job : {"j-2", "j-3", "j-4", "j-5"}) cluster.Take({{}, DEVICE_CPU, "", true}, JobId(job));
  cluster.Take(second, JobId("j-2"));
  EXPECT_EQ(cluster.Place({1, DEVICE_AUTO}).reason,
            "needs 1 slot, 0 of 5 free (in use: j-1, j-2, j-3 and 2 more jobs)");
}

TEST(Queue, PriorityThenArrival) {
  const int32_t lowest = std::numeric_limits<int32_t>::min();
  std::vector<Waiting> queue = {
      {JobId("late"), 0, 9}, {JobId("least"), lowest, 1}, {JobId("early"), 0, 2}, {JobId("urgent"), 5, 10}};
  SortQueue(queue);
  EXPECT_EQ(absl::StrJoin(queue, " ", [](std::string* out, const Waiting& w) { absl::StrAppend(out, w.job.value()); }),
            "urgent early late least");
}

}  // namespace
}  // namespace muster::scheduler
