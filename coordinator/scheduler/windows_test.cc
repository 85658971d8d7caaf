// Nodes that are reserved for others in windows of time, by worked examples.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/scheduler/pass.h"

namespace muster::scheduler {
namespace {

constexpr absl::Duration kHour = absl::Hours(1);

// A node with one slot, which a job of that claim holds; without one it is free.
NodeView OneSlot(const std::string& id, const Claim& holder = {}) {
  return {NodeId(id), {{.index = 0, .device = DEVICE_CPU, .holder = holder}}};
}

Claim Job(const std::string& id, uint64_t sequence, absl::Duration ends_in = absl::InfiniteDuration()) {
  return {.job = JobId(id), .sequence = sequence, .ends_in = ends_in};
}

std::shared_ptr<const std::set<NodeId>> Nodes(const std::vector<std::string>& names) {
  std::set<NodeId> nodes;
  for (const std::string& name : names) nodes.insert(NodeId(name));
  return std::make_shared<const std::set<NodeId>>(std::move(nodes));
}

// Of a job that holds slots for `ends_in`: so many ranks, and a window in which these nodes are reserved.
Demand Needs(uint32_t ranks, absl::Duration ends_in, absl::Duration begin, absl::Duration end,
             const std::vector<std::string>& nodes) {
  Demand demand{ranks, DEVICE_CPU};
  demand.closed.push_back({begin - ends_in, end, Nodes(nodes)});
  return demand;
}

std::string NodesOf(const Decision& decision) {
  return absl::StrJoin(decision.ranks, " ",
                       [](std::string* out, const RankSlot& rank) { absl::StrAppend(out, rank.node.value()); });
}

TEST(Windows, AJobGetsNoNodeOnWhichItCouldRunInAWindow) {
  const Cluster cluster({OneSlot("a"), OneSlot("b")});
  struct Case {
    const char* what;
    absl::Duration ends_in, begin, end;
    std::string nodes;
  };
  const Case cases[] = {
      {"it could run for ever", absl::InfiniteDuration(), 100 * kHour, 101 * kHour, "b"},
      {"it could run for too long", 3 * kHour, 2 * kHour, 4 * kHour, "b"},
      {"it ends when the window begins", 2 * kHour, 2 * kHour, 4 * kHour, "a"},
      {"it would start in the window", kHour, -absl::InfiniteDuration(), kHour, "b"},
      {"the window is over", absl::InfiniteDuration(), -absl::InfiniteDuration(), absl::ZeroDuration(), "a"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(NodesOf(cluster.Place(Needs(1, c.ends_in, c.begin, c.end, {"a"}))), c.nodes) << c.what;
  }
  const Decision both = cluster.Place(Needs(2, absl::InfiniteDuration(), kHour, 2 * kHour, {"a"}));
  EXPECT_EQ(NodesOf(both), "");
  EXPECT_EQ(both.reason, "needs 2 slots, 1 of 1 free");
  EXPECT_TRUE(both.fits_when_idle) << "as soon as the window is over";
}

TEST(Windows, AnIdleClusterHoldsAJobWhenEnoughNodesAreNoLongerReserved) {
  const Cluster cluster({OneSlot("a"), OneSlot("b"), OneSlot("c")});
  Demand demand{2, DEVICE_CPU};
  demand.closed = {{-absl::InfiniteDuration(), 3 * kHour, Nodes({"a"})},
                   {-absl::InfiniteDuration(), 5 * kHour, Nodes({"b"})}};
  EXPECT_EQ(cluster.IdleFrom(demand), 3 * kHour);
  demand.ranks = 3;
  EXPECT_EQ(cluster.IdleFrom(demand), 5 * kHour);
  demand.ranks = 4;
  EXPECT_EQ(cluster.IdleFrom(demand), absl::InfiniteDuration());
  demand.ranks = 1;
  EXPECT_EQ(cluster.IdleFrom(demand), absl::ZeroDuration());
}

// Its slots are free in an hour, but it would still run when the window begins, half an hour later.
TEST(Windows, TheHeadStartsAfterAWindowThatItWouldRunInto) {
  Cluster cluster({OneSlot("a", Job("early", 1, kHour)), OneSlot("b")});
  Pass pass(&cluster);
  const Demand demand = Needs(2, kHour, absl::Minutes(90), 3 * kHour, {"a"});
  EXPECT_EQ(NodesOf(pass.Consider(Job("head", 2, kHour), demand)), "");
  EXPECT_TRUE(pass.IsHead(JobId("head")));
  EXPECT_EQ(pass.StartsIn(JobId("head")), 3 * kHour);
  const Claim longer = Job("longer", 3, 3 * kHour + absl::Seconds(1));
  const Decision held = pass.Consider(longer, {1, DEVICE_CPU});
  EXPECT_EQ(NodesOf(held), "");
  EXPECT_EQ(pass.Why(held, {1, DEVICE_CPU}),
            "waiting behind head, for which 2 slots are reserved in at most 3h: with a time_limit that ends before, it "
            "could start now");
  EXPECT_EQ(NodesOf(pass.Consider(Job("shorter", 4, 3 * kHour), {1, DEVICE_CPU})), "b");
}

TEST(Windows, AWindowThatTheHeadEndsBeforeDoesNotDelayIt) {
  Cluster cluster({OneSlot("a", Job("early", 1, kHour)), OneSlot("b")});
  Pass pass(&cluster);
  pass.Consider(Job("head", 2, kHour), Needs(2, kHour, 2 * kHour, 3 * kHour, {"a"}));
  EXPECT_EQ(pass.StartsIn(JobId("head")), kHour);
}

// The first job of the queue cannot start before the maintenance in ten hours is over. Until then the next one that can
// has slots reserved, as if it were the first.
TEST(Windows, AJobThatWaitsForAWindowToEndDoesNotTakeTheNextJobsPlace) {
  Cluster cluster({OneSlot("a", Job("early", 1, 2 * kHour)), OneSlot("b", Job("endless", 2)), OneSlot("c")});
  Pass pass(&cluster);
  const auto needs = [](uint32_t ranks, const Claim& claim) {
    return Needs(ranks, claim.ends_in, 10 * kHour, 12 * kHour, {"a", "b", "c"});
  };
  const Claim late = Job("late", 3), head = Job("head", 4, 3 * kHour);
  EXPECT_EQ(NodesOf(pass.Consider(late, needs(1, late))), "") << "without a time limit";
  EXPECT_FALSE(pass.IsHead(JobId("late")));
  EXPECT_EQ(NodesOf(pass.Consider(head, needs(2, head))), "");
  EXPECT_TRUE(pass.IsHead(JobId("head")));
  EXPECT_EQ(pass.StartsIn(JobId("late")), 12 * kHour);
  EXPECT_EQ(pass.StartsIn(JobId("head")), 2 * kHour);
  const Claim longer = Job("longer", 5, 4 * kHour), shorter = Job("shorter", 6, 2 * kHour);
  EXPECT_EQ(NodesOf(pass.Consider(longer, needs(1, longer))), "") << "it would delay the head";
  EXPECT_EQ(NodesOf(pass.Consider(shorter, needs(1, shorter))), "c");
}

// On a node that is not reserved: the late head needs it, too, after the window.
TEST(Windows, JobsThatDoNotEndBeforeItLeaveTheLateHeadItsSlots) {
  Cluster cluster({OneSlot("a"), OneSlot("b"), OneSlot("c")});
  Pass pass(&cluster);
  const Demand demand = Needs(2, absl::InfiniteDuration(), kHour, 2 * kHour, {"a", "b"});
  EXPECT_EQ(NodesOf(pass.Consider(Job("late", 1), demand)), "") << "only c is not reserved";
  EXPECT_EQ(pass.StartsIn(JobId("late")), 2 * kHour);
  const Demand one = Needs(1, absl::InfiniteDuration(), kHour, 2 * kHour, {"a", "b"});
  const Decision first = pass.Consider(Job("endless", 2), one);
  EXPECT_EQ(NodesOf(first), "c") << "a and b are enough for the late head";
  pass.Start(Job("endless", 2), first);
  const Demand free{1, DEVICE_CPU};
  const Decision held = pass.Consider(Job("more", 3), free);
  EXPECT_EQ(NodesOf(held), "");
  EXPECT_EQ(pass.Why(held, free),
            "waiting behind late, for which 2 slots are reserved in at most 2h: with a time_limit that ends before, it "
            "could start now");
  EXPECT_EQ(NodesOf(pass.Consider(Job("short", 4, kHour), free)), "a");
}

// Each day the job could start for some hours only, and each time a later one holds the rest of its slots.
TEST(Windows, AnEndlessJobDoesNotTakeTheLateHeadsSlots) {
  Cluster cluster({OneSlot("a", Job("early", 1, kHour)), OneSlot("b")});
  Pass pass(&cluster);
  const absl::Duration limit = 20 * kHour;
  EXPECT_EQ(NodesOf(pass.Consider(Job("late", 2, limit), Needs(2, limit, 10 * kHour, 11 * kHour, {"a"}))), "");
  EXPECT_EQ(pass.StartsIn(JobId("late")), 11 * kHour);
  EXPECT_EQ(NodesOf(pass.Consider(Job("endless", 3), {1, DEVICE_CPU})), "");
  EXPECT_EQ(NodesOf(pass.Consider(Job("day", 4, 11 * kHour), {1, DEVICE_CPU})), "b");
}

// The late head waits for a; the next job for slots that it does not need.
TEST(Windows, AJobThatLeavesTheLateHeadItsSlotsIsTheHeadOfTheOthers) {
  Cluster cluster({OneSlot("a"), OneSlot("b", Job("early", 1, kHour)), OneSlot("c")});
  Pass pass(&cluster);
  Demand on_a = Needs(1, absl::InfiniteDuration(), 30 * kHour, 31 * kHour, {"a"});
  on_a.avoid = {NodeId("b"), NodeId("c")};
  EXPECT_EQ(NodesOf(pass.Consider(Job("late", 2), on_a)), "");
  EXPECT_FALSE(pass.IsHead(JobId("late")));
  Demand others{2, DEVICE_CPU};
  others.avoid = {NodeId("a")};
  const Decision waits = pass.Consider(Job("head", 3), others);
  EXPECT_EQ(NodesOf(waits), "");
  EXPECT_TRUE(pass.IsHead(JobId("head")));
  EXPECT_EQ(pass.Why(waits, others), "needs 2 slots, 1 of 2 free (in use: early)");
  others.ranks = 1;
  EXPECT_EQ(NodesOf(pass.Consider(Job("endless", 4), others)), "") << "c is reserved for the head";
  EXPECT_EQ(NodesOf(pass.Consider(Job("day", 5, 30 * kHour), {1, DEVICE_CPU})), "a");
}

// After the window the late head needs two of the three, whichever.
TEST(Windows, AJobThatTakesWhatTheLateHeadLeavesMayBeTheHead) {
  Cluster cluster({OneSlot("a"), OneSlot("b", Job("early", 1, kHour)), OneSlot("c", Job("other", 1, kHour))});
  Pass pass(&cluster);
  const Demand late = Needs(2, absl::InfiniteDuration(), 30 * kHour, 31 * kHour, {"a", "b"});
  EXPECT_EQ(NodesOf(pass.Consider(Job("late", 2), late)), "");
  const Demand one = Needs(1, absl::InfiniteDuration(), 30 * kHour, 31 * kHour, {"a", "b"});
  EXPECT_EQ(NodesOf(pass.Consider(Job("head", 3), one)), "") << "c is in use";
  EXPECT_TRUE(pass.IsHead(JobId("head")));
  Demand on_c{1, DEVICE_CPU};
  on_c.avoid = {NodeId("a"), NodeId("b")};
  EXPECT_EQ(NodesOf(pass.Consider(Job("short", 4, kHour), {1, DEVICE_CPU})), "a") << "on which the head is not";
}

TEST(Windows, JobsInAReservationHaveAHeadOfTheirOwn) {
  Cluster cluster({OneSlot("a", Job("inside", 1)), OneSlot("b", Job("early", 2)), OneSlot("c")});
  Pass pass(&cluster);
  Demand inside{1, DEVICE_CPU}, outside{2, DEVICE_CPU};
  inside.avoid = {NodeId("b"), NodeId("c")}, inside.reservation = "lab";
  outside.closed = {{-absl::InfiniteDuration(), kHour, Nodes({"a"})}};
  EXPECT_EQ(NodesOf(pass.Consider(Job("first", 3), inside)), "");
  EXPECT_EQ(NodesOf(pass.Consider(Job("second", 4), outside)), "");
  EXPECT_TRUE(pass.IsHead(JobId("first")));
  EXPECT_TRUE(pass.IsHead(JobId("second")));
  outside.ranks = 1;
  EXPECT_EQ(NodesOf(pass.Consider(Job("third", 5), outside)), "") << "c is reserved for the second";
}

}  // namespace
}  // namespace muster::scheduler
