#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "coordinator/scheduler/pass.h"
#include "coordinator/scheduler/place.h"
#include "coordinator/scheduler/queue_order.h"

namespace muster::scheduler {
namespace {

// "a:FFU" is node a with two free slots and a used one; "A:" has cuda slots; a last letter marks it as away (-),
// draining (!) or lost (?).
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
    if (text[i] != 'F') slot.holder = {JobId("other-job"), 0, 1};
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
      {2,
       DEVICE_AUTO,
       {"a:F"},
       "",
       "can never start on these nodes: needs 2 slots on cpu, the nodes have 1 in all, 1 free; at most 1 rank would "
       "fit",
       false},
      {2, DEVICE_AUTO, {"a:F", "b:U"}, "", "needs 2 slots, 1 of 2 free (in use: other-job)", true},  // never partly
      {2, DEVICE_AUTO, {"a:FFFF", "b:UFF"}, "b1 b2", "", true},                 // the fullest node that holds all
      {3, DEVICE_AUTO, {"a:F", "b:FF"}, "b0 b1 a0", "", true},                  // else the emptiest first
      {5, DEVICE_AUTO, {"a:FF", "b:FFFF", "c:F"}, "b0 b1 b2 b3 c0", "", true},  // the rest fills the fullest
      {5, DEVICE_AUTO, {"b:FF", "c:FF", "a:FF"}, "a0 a1 b0 b1 c0", "", true},
      {2, DEVICE_AUTO, {"a:FUF"}, "a0 a2", "", true},
      {9,
       DEVICE_AUTO,
       {"a:FFFF", "B:FF"},
       "",
       "can never start on these nodes: needs 9 slots on cuda, the nodes have 2 in all, 2 free; at most 2 ranks would "
       "fit",
       false},
      {1, DEVICE_AUTO, {"b:F", "a:F"}, "a0", "", true},  // ties by id
      {1, DEVICE_AUTO, {"a:F", "B:F"}, "B0", "", true},  // auto takes cuda where it is
      {1, DEVICE_AUTO, {"a:F", "B:U"}, "", "needs 1 slot, 0 of 1 free (in use: other-job)", true},
      {1, DEVICE_CPU, {"a:F", "B:F"}, "a0", "", true},
      {1,
       DEVICE_CUDA,
       {"a:F"},
       "",
       "can never start on these nodes: needs 1 slot on cuda; no node has a GPU (the nodes have 1 slot on cpu: set "
       "resources.device: cpu)",
       false},
      {1,
       DEVICE_AUTO,
       {"a:F-", "b:F!", "c:F?"},
       "",
       "needs 1 slot, but no node accepts ranks now (1 node is away, 1 node is draining, 1 node is lost)",
       true},
      {2, DEVICE_AUTO, {"a:F-", "b:F"}, "", "needs 2 slots, 1 of 1 free (1 node is away)", true},  // worth waiting for
      {2,
       DEVICE_AUTO,
       {"a:F?", "b:F"},
       "",
       "can never start on these nodes: needs 2 slots on cpu, the nodes have 1 in all, 1 free; at most 1 rank would "
       "fit (1 node is lost)",
       false},
      {1, DEVICE_AUTO, {"a:F", "B:F-"}, "", "needs 1 slot, 0 of 0 free (1 node is away)", true},  // waits for its GPUs
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

// Four ranks compute each unit together, on one node: what a node has beyond a multiple of them stays free.
TEST(Place, RanksThatMustBeTogetherAreOnOneNode) {
  const Demand demand{.ranks = 8, .least = 4, .multiple = 4, .together = 4};
  const auto placed = [&](const std::vector<NodeView>& nodes) { return Placed(Cluster(nodes).Place(demand)); };
  EXPECT_EQ(placed({Node("a:FFFFF"), Node("b:FFFF")}), "a0 a1 a2 a3 b0 b1 b2 b3");
  EXPECT_EQ(placed({Node("a:FFF"), Node("b:FFFFFFF")}), "b0 b1 b2 b3");
  const Decision none = Cluster({Node("a:FFF"), Node("b:FFF"), Node("c:FFF")}).Place(demand);
  EXPECT_EQ(Placed(none), "");
  EXPECT_FALSE(none.fits_when_idle) << "nine slots, and no node has four";
  EXPECT_EQ(none.reason,
            "can never start on these nodes: needs 4 to 8 slots, each 4 on one node (parallel.tensor) on cpu, the "
            "nodes have none");
}

// Stages of a pipeline: 3 of them on 9, 6 or 3 ranks.
TEST(Place, AsManyRanksAsAreAMultiple) {
  const Demand demand{.ranks = 9, .least = 3, .multiple = 3};
  const auto placed = [&](const std::vector<NodeView>& nodes) { return Placed(Cluster(nodes).Place(demand)); };
  EXPECT_EQ(placed({Node("a:FFFFF"), Node("b:FFF")}), "a0 a1 a2 a3 b0 b1") << "each stage of two on one node";
  EXPECT_EQ(placed({Node("a:FFFFF")}), "a0 a1 a2");
  EXPECT_EQ(placed({Node("a:FF")}), "");
  EXPECT_EQ(placed({Node("a:FFFFF"), Node("b:FFFFF")}).size(), 9 * 3u - 1);
  Decision kept = Cluster({Node("b:FFFF")}).Place({.ranks = 4});
  EXPECT_EQ(Placed(Cluster({Node("b:FFFF"), Node("a:FFF")}).Place(demand, &kept)), "b0 b1 b2 b3 a0 a1")
      << "four ranks are kept for no job of three stages";
}

// A cluster after Take equals a cluster built from the same slots.
TEST(Place, TakenSlotsAreNoLongerFree) {
  Cluster cluster({Node("a:FFF"), Node("b:FF")});
  const Decision first = cluster.Place({4, DEVICE_AUTO});
  EXPECT_EQ(Placed(first), "a0 a1 a2 b0");
  cluster.Take(first, {JobId("j-1"), 0, 1});
  EXPECT_EQ(cluster.Place({2, DEVICE_AUTO}).reason, "needs 2 slots, 1 of 5 free (in use: j-1)");
  const Decision second = cluster.Place({1, DEVICE_AUTO});
  EXPECT_EQ(Placed(second), "b1");
  for (const char* job : {"j-2", "j-3", "j-4", "j-5"}) cluster.Take({{}, DEVICE_CPU, "", true}, {JobId(job), 0, 2});
  cluster.Take(second, {JobId("j-2"), 0, 2});
  EXPECT_EQ(cluster.Place({1, DEVICE_AUTO}).reason,
            "needs 1 slot, 0 of 5 free (in use: j-1, j-2, j-3 and 2 more jobs)");
}

// Runs one pass over a queue of jobs "name:ranks[:priority]"; returns what started, and why each other job waits.
std::string Walk(std::vector<NodeView> nodes, const std::vector<Claim>& running, const std::vector<std::string>& jobs) {
  size_t next = 0;  // running jobs hold the used slots, in order
  for (NodeView& node : nodes) {
    for (SlotView& slot : node.slots) {
      if (!slot.holder.job.empty()) slot.holder = running.at(next++);
    }
  }
  std::vector<Claim> queue;
  std::map<JobId, Demand> demands;
  for (const std::string& text : jobs) {
    const std::vector<std::string> parts = absl::StrSplit(text, ':');
    queue.push_back({JobId(parts[0]), parts.size() > 2 ? std::stoi(parts[2]) : 0, 100 + queue.size()});
    demands[queue.back().job] = {static_cast<uint32_t>(std::stoul(parts[1])), DEVICE_AUTO};
  }
  SortQueue(queue);
  Cluster cluster(nodes);
  Pass pass(&cluster);
  std::string started;
  for (const Claim& claim : queue) {
    const Decision decision = pass.Consider(claim, demands.at(claim.job));
    if (decision.ranks.empty()) continue;
    pass.Start(claim, decision);
    absl::StrAppend(&started, started.empty() ? "" : " ", claim.job.value());
  }
  return started;
}

TEST(Pass, Table) {
  const Claim early{JobId("early"), 0, 1}, late{JobId("late"), -5, 2};
  struct Case {
    std::vector<std::string> nodes;
    std::vector<Claim> running;
    std::vector<std::string> queue;
    std::string started;
  };
  const std::vector<Case> cases = {
      {{"a:FF"}, {}, {"x:1", "y:1", "z:1"}, "x y"},
      {{"a:FF"}, {}, {"x:1", "y:1:9"}, "y x"},
      {{"a:UF"}, {early}, {"large:2", "s:1"}, ""},                   // the free slot is reserved for large
      {{"a:UFFF"}, {early}, {"large:2", "s:1"}, "large s"},          //
      {{"a:UUFF"}, {early, early}, {"large:3", "s:1", "t:1"}, "s"},  // large needs 3 of 4: one to spare
      {{"a:UUFF"}, {early, late}, {"large:3", "s:1", "t:1"}, ""},    // but a later job already has it
      {{"a:UUFF"}, {early, early}, {"large:3", "s:2", "t:1"}, "t"},  // s would take too many
      {{"a:UFFFF"}, {early}, {"large:5", "s:1"}, ""},
      {{"a:UF"}, {early}, {"huge:3", "s:1"}, "s"},          // can never run here: reserves nothing
      {{"a:UF", "b:F-"}, {early}, {"large:3", "s:1"}, ""},  // may run when b is back
      {{"a:UFF"}, {early}, {"large:3", "next:3", "s:1", "urgent:2:1"}, "urgent"},
      {{"A:U", "a:F"}, {early}, {"gpu:1", "s:1"}, ""},
  };
  for (const Case& c : cases) {
    std::vector<NodeView> nodes;
    for (const std::string& n : c.nodes) nodes.push_back(Node(n));
    EXPECT_EQ(Walk(nodes, c.running, c.queue), c.started) << absl::StrJoin(c.queue, " ");
  }
}

// Four slots, for a head of three. Each job is "name:ranks:minutes", those that run hold slots in their order; "-"
// means no time limit. Expected: when the head starts at the latest, and what of the queue overtakes it.
TEST(Pass, TimeLimitsPredictTheStartAndFillTheTimeUntilThen) {
  const absl::Duration never = absl::InfiniteDuration();
  struct Case {
    std::vector<std::string> running, queue;
    absl::Duration head_starts;
    std::string overtakes;
  };
  const std::vector<Case> cases = {
      {{"a:2:60"}, {"head:3:-", "s:1:60", "t:1:-"}, absl::Minutes(60), "s t"},  // t: the fourth slot is not needed
      {{"a:2:60"}, {"head:4:-", "s:1:61", "t:1:-", "u:1:60"}, absl::Minutes(60), "u"},
      {{"a:2:60"}, {"head:4:-", "s:2:10"}, absl::Minutes(60), "s"},
      {{"a:2:60"}, {"head:4:-", "s:3:10"}, absl::Minutes(60), ""},  // there are only two
      {{"a:2:60", "b:1:5"}, {"head:2:-", "s:1:5", "t:1:30"}, absl::Minutes(5), "s"},
      {{"a:2:60", "b:1:-"}, {"head:3:-", "s:1:-", "t:1:30"}, absl::Minutes(60), "t"},  // s would hold what it needs
      {{"a:2:-", "b:1:5"}, {"head:3:-", "s:1:1"}, never, "s"},  // when a ends is unknown: as without limits
      {{"a:2:-", "b:1:5"}, {"head:4:-", "s:1:1"}, never, ""},
      {{"a:1:10", "b:1:20", "c:1:30"}, {"head:3:-", "s:1:20", "t:1:20"}, absl::Minutes(20), "s"},
  };
  for (const Case& c : cases) {
    uint64_t sequence = 0;
    const auto read = [&](const std::string& text, Demand& demand) {
      const std::vector<std::string> parts = absl::StrSplit(text, ':');
      demand = {static_cast<uint32_t>(std::stoul(parts[1])), DEVICE_CPU};
      return Claim{JobId(parts[0]), 0, ++sequence, parts[2] == "-" ? never : absl::Minutes(std::stoi(parts[2]))};
    };
    Demand demand;
    Cluster cluster({Node("n:FFFF")});
    for (const std::string& text : c.running) {
      const Claim claim = read(text, demand);
      cluster.Take(cluster.Place(demand), claim);
    }
    Pass pass(&cluster);
    std::string overtakes;
    for (const std::string& text : c.queue) {
      const Claim claim = read(text, demand);
      const Decision decision = pass.Consider(claim, demand);
      if (decision.ranks.empty()) continue;
      pass.Start(claim, decision);
      absl::StrAppend(&overtakes, overtakes.empty() ? "" : " ", claim.job.value());
    }
    const std::string what = absl::StrCat(absl::StrJoin(c.running, " "), " / ", absl::StrJoin(c.queue, " "));
    EXPECT_EQ(pass.StartsIn(JobId("head")), c.head_starts) << what;
    EXPECT_EQ(overtakes, c.overtakes) << what;
  }
}

// A head whose ranks must be together, `each` on a node, needs `head` slots. "e" is a slot of a job before it in the
// queue, "l" one of a job after it; a later job takes as many of the free ones ("F") as it may have.
TEST(Pass, AHeadWhoseRanksAreTogetherKeepsWholeGroups) {
  struct Case {
    const char* what;
    uint32_t head, each;
    std::vector<std::string> nodes;
    std::string taken;
  };
  const std::vector<Case> cases = {
      {"one of two groups may be broken, the one with more free slots", 4, 4, {"a:eeFF", "b:eFFF"}, "b1 b2 b3"},
      {"and of equal ones the first", 4, 4, {"a:eFFF", "b:eFFF"}, "a1 a2 a3"},
      {"both are needed", 8, 4, {"a:eFFF", "b:eFFF"}, ""},
      {"what makes no group is free", 8, 4, {"a:eFFFFF", "b:eFFF"}, "a1 a2"},
      {"also where a later job has it already", 4, 4, {"a:lFFF", "b:eFFF"}, "a1 a2 a3"},
      {"a broken group is taken whole before another is", 4, 4, {"a:lFFF", "b:eFFF", "c:eFFF"}, "a1 a2 a3 b1 b2 b3"},
      {"it waits for a later job", 4, 4, {"a:lFFF", "b:lFFF"}, ""},
      {"and never needs a fifth slot", 4, 4, {"a:lFFF", "b:FlllF"}, ""},
      {"or all of a small node", 4, 4, {"a:lFFF", "b:FlF"}, "b0 b2"},
      {"several groups on a node", 12, 4, {"a:eFFFFFFF", "b:eFFFFFFF"}, "a1 a2 a3 a4"},
      {"of which it needs one", 4, 4, {"a:eeeeeFFF", "b:eeeeeFFF"}, "a5 a6 a7 b5 b6 b7"},
  };
  for (const Case& c : cases) {
    std::vector<NodeView> nodes;
    for (const std::string& text : c.nodes) {
      NodeView& node = nodes.emplace_back(Node(text));
      for (size_t s = 0; s < node.slots.size(); ++s) {
        if (text[s + 2] == 'e') node.slots[s].holder = {JobId("early"), 0, 1};
        if (text[s + 2] == 'l') node.slots[s].holder = {JobId("late"), 0, 9};
      }
    }
    Cluster cluster(nodes);
    Pass pass(&cluster);
    const Demand head{.ranks = c.head, .device = DEVICE_CPU, .multiple = c.each, .together = c.each};
    ASSERT_TRUE(pass.Consider({JobId("head"), 0, 2}, head).ranks.empty()) << c.what;
    std::string taken;
    for (uint64_t job = 3; job < 30; ++job) {
      const Claim small{JobId(absl::StrCat("small-", job)), 0, job};
      const Decision one = pass.Consider(small, {1, DEVICE_CPU});
      if (one.ranks.empty()) break;
      pass.Start(small, one);
      absl::StrAppend(&taken, taken.empty() ? "" : " ", Placed(one));
    }
    EXPECT_EQ(taken, c.taken) << c.what;
  }
}

// The sum would be enough: four of sixteen slots are not for the head. But three on one node and one on another leave
// it two whole nodes and seven slots that make no group.
TEST(Pass, LaterJobsDoNotBreakTheGroupsOfTheHead) {
  std::vector<NodeView> nodes = {Node("a:UFFF"), Node("b:UFFF"), Node("c:FFFF"), Node("d:FFFF")};
  for (int n : {0, 1}) nodes[static_cast<size_t>(n)].slots[0].holder = {JobId("early"), 0, 1};
  Cluster cluster(nodes);
  Pass pass(&cluster);
  const Demand head{.ranks = 12, .device = DEVICE_CPU, .multiple = 4, .together = 4};
  EXPECT_TRUE(pass.Consider({JobId("head"), 0, 2}, head).ranks.empty());
  const Decision three = pass.Consider({JobId("three"), 0, 3}, {3, DEVICE_CPU});
  EXPECT_EQ(Placed(three), "c0 c1 c2");
  pass.Start({JobId("three"), 0, 3}, three);
  const Demand two{2, DEVICE_CPU}, one{1, DEVICE_CPU};
  const Decision held = pass.Consider({JobId("two"), 0, 4}, two);
  EXPECT_EQ(Placed(held), "");
  EXPECT_EQ(pass.Why(held, two), "waiting behind head, for which 12 slots are reserved");
  const Decision last = pass.Consider({JobId("one"), 0, 5}, one);
  EXPECT_EQ(Placed(last), "c3");
  pass.Start({JobId("one"), 0, 5}, last);
  EXPECT_EQ(Placed(pass.Consider({JobId("more"), 0, 6}, one)), "");
}

TEST(Pass, TheReasonNamesTheJobThatHoldsBack) {
  Cluster cluster({Node("a:UFF")});
  Pass pass(&cluster);
  const auto why = [&](const char* job, uint64_t sequence, const Demand& demand) {
    return pass.Why(pass.Consider({JobId(job), 0, sequence}, demand), demand);
  };
  EXPECT_EQ(why("large", 5, {3, DEVICE_AUTO}), "needs 3 slots, 2 of 3 free (in use: other-job)");
  EXPECT_EQ(why("small", 6, {1, DEVICE_AUTO}), "waiting behind large, for which 3 slots are reserved");
  EXPECT_EQ(why("next", 7, {3, DEVICE_AUTO}), "needs 3 slots, 2 of 3 free (in use: other-job)");
  EXPECT_EQ(why("huge", 8, {8, DEVICE_AUTO}),
            "can never start on these nodes: needs 8 slots on cpu, the nodes have 3 in all, 2 free; at most 3 ranks "
            "would fit");
}

// A node of free slots with this many GiB each; 0: unknown.
NodeView Sized(const std::string& id, const std::vector<uint64_t>& gib) {
  NodeView node{.id = NodeId(id)};
  for (const uint64_t g : gib) {
    SlotView& slot = node.slots.emplace_back();
    slot.index = static_cast<uint32_t>(node.slots.size() - 1);
    slot.memory_bytes = g << 30;
  }
  return node;
}

TEST(Place, OnSlotsOfEnoughMemory) {
  const Cluster cluster({Sized("a", {40, 40, 80}), Sized("b", {80}), Sized("c", {0})});
  const auto place = [&](uint32_t ranks, uint64_t gib, uint64_t below = 0) {
    return cluster.Place({ranks, DEVICE_AUTO, gib << 30, below << 30});
  };
  EXPECT_EQ(Placed(place(2, 60)), "a2 b0");
  EXPECT_EQ(Placed(place(3, 60)), "a2 b0 c0") << "unknown memory may be enough";
  EXPECT_EQ(Placed(place(2, 0)), "a0 a1");
  EXPECT_EQ(Placed(place(2, 0, 60)), "a0 a1");
  EXPECT_EQ(Placed(place(3, 0, 60)), "");
  EXPECT_FALSE(place(4, 60).fits_when_idle);
  EXPECT_EQ(
      place(4, 60).reason,
      "can never start on these nodes: needs 4 slots of at least 60 GiB, the nodes have 3, the largest has 80 GiB");
  EXPECT_EQ(
      place(2, 100).reason,
      "can never start on these nodes: needs 2 slots of at least 100 GiB, the nodes have 1, the largest has 80 GiB");
  EXPECT_EQ(place(6, 60).reason,
            "can never start on these nodes: needs 6 slots of at least 60 GiB on cpu, the nodes have 3 in all, 3 free; "
            "at most 3 ranks would fit");
}

// Slots that are too small for the head are free for later jobs; the others are reserved.
TEST(Pass, AHeadThatNeedsMemoryReservesOnlySuitableSlots) {
  std::vector<NodeView> nodes = {Sized("a", {80, 80, 40, 40})};
  nodes[0].slots[0].holder = {JobId("early"), 0, 1};
  Cluster cluster(nodes);
  Pass pass(&cluster);
  const uint64_t gib60 = uint64_t{60} << 30;
  const Demand large{2, DEVICE_AUTO, gib60}, one{1, DEVICE_AUTO}, three{3, DEVICE_AUTO};
  const Decision head = pass.Consider({JobId("large"), 0, 2}, large);
  EXPECT_EQ(Placed(head), "");
  EXPECT_EQ(pass.Why(head, large), "needs 2 slots of at least 60 GiB, 1 of 2 free (in use: early)");
  EXPECT_EQ(pass.Why(pass.Consider({JobId("wide"), 0, 3}, three), three),
            "waiting behind large, for which 2 slots are reserved");
  EXPECT_FALSE(pass.Over());
  for (const char* expected : {"a2", "a3"}) {
    const Decision small = pass.Consider({JobId("small"), 0, 4}, one);
    EXPECT_EQ(Placed(small), expected);
    pass.Start({JobId("small"), 0, 4}, small);
  }
  EXPECT_EQ(Placed(pass.Consider({JobId("smaller"), 0, 5}, one)), "");
}

TEST(Place, AvoidsNodesAndTakesTheLastChoiceLast) {
  const std::vector<NodeView> nodes = {Node("a:FFFF"), Node("b:FF"), Node("c:FFUU")};
  const auto placed = [&](Demand demand) { return Placed(Cluster(nodes).Place(demand)); };
  EXPECT_EQ(placed({.ranks = 3}), "a0 a1 a2");
  EXPECT_EQ(placed({.ranks = 3, .avoid = {NodeId("a")}}), "b0 b1 c0");
  EXPECT_EQ(placed({.ranks = 3, .last_choice = {NodeId("a")}}), "b0 b1 c0");
  EXPECT_EQ(placed({.ranks = 5, .last_choice = {NodeId("a")}}), "b0 b1 c0 c1 a0");
  EXPECT_EQ(placed({.ranks = 4, .together = 2, .avoid = {NodeId("b")}, .last_choice = {NodeId("c")}}), "a0 a1 a2 a3");
  const Decision none = Cluster(nodes).Place({.ranks = 6,
                                              .device = DEVICE_CPU,
                                              .avoid = {NodeId("a"), NodeId("z")},
                                              .where = ", without a, z, which rejected it"});
  EXPECT_EQ(none.reason, "needs 6 slots, 4 of 6 free (in use: other-job), without a, z, which rejected it");
  EXPECT_TRUE(none.fits_when_idle);
  EXPECT_FALSE(Cluster(nodes).FitsWhenIdle({.ranks = 7, .device = DEVICE_CPU, .avoid = {NodeId("a")}}));
  EXPECT_TRUE(Cluster(nodes).FitsWhenIdle({.ranks = 7, .device = DEVICE_CPU, .avoid = {NodeId("b")}}));
}

// Slots of nodes that the head avoids are free for later jobs; the others are reserved.
TEST(Pass, AHeadThatAvoidsANodeLeavesItToOthers) {
  Cluster cluster({Node("a:FF"), Node("b:UF")});
  Pass pass(&cluster);
  const Demand head{.ranks = 2, .avoid = {NodeId("a")}};
  EXPECT_EQ(Placed(pass.Consider({JobId("head"), 0, 2}, head)), "");
  EXPECT_FALSE(pass.Over());
  const Decision small = pass.Consider({JobId("small"), 0, 3}, {.ranks = 2});
  EXPECT_EQ(Placed(small), "a0 a1");
  pass.Start({JobId("small"), 0, 3}, small);
  EXPECT_EQ(Placed(pass.Consider({JobId("smaller"), 0, 4}, {.ranks = 1})), "");
  EXPECT_TRUE(pass.Over() || cluster.FreeSlots({.ranks = 1, .device = DEVICE_CUDA}) == 0);
}

TEST(Queue, PriorityThenArrival) {
  const int32_t lowest = std::numeric_limits<int32_t>::min();
  std::vector<Claim> queue = {
      {JobId("late"), 0, 9}, {JobId("least"), lowest, 1}, {JobId("early"), 0, 2}, {JobId("urgent"), 5, 10}};
  SortQueue(queue);
  EXPECT_EQ(absl::StrJoin(queue, " ", [](std::string* out, const Claim& w) { absl::StrAppend(out, w.job.value()); }),
            "urgent early late least");
}

// A job that may run on fewer ranks.
TEST(Pass, AnElasticJobTakesTheFreeSlots) {
  NodeView node{NodeId("n"), {}};
  for (uint32_t slot = 0; slot < 6; ++slot) node.slots.push_back({slot, DEVICE_CPU, {}});
  const auto demand = [](uint32_t ranks, uint32_t least) { return Demand{ranks, DEVICE_CPU, 0, 0, least}; };
  const struct {
    const char* what;
    Demand head;  // comes first, and starts if it can
    Demand second;
    size_t head_ranks, second_ranks;
  } kCases[] = {
      {"all free slots", demand(8, 2), demand(1, 0), 6, 0},
      {"no more than it requests", demand(4, 2), demand(4, 1), 4, 2},
      {"not fewer than the least", demand(9, 7), demand(1, 0), 0, 1},
  };
  for (const auto& test : kCases) {
    Cluster cluster({node});
    Pass pass(&cluster);
    const Claim first{JobId("first"), 0, 1}, second{JobId("second"), 0, 2};
    const Decision head = pass.Consider(first, test.head);
    if (!head.ranks.empty()) pass.Start(first, head);
    EXPECT_EQ(head.ranks.size(), test.head_ranks) << test.what;
    EXPECT_EQ(pass.Consider(second, test.second).ranks.size(), test.second_ranks) << test.what;
  }
}

// Only the head's least number of ranks is reserved; later jobs shrink into the rest.
TEST(Pass, AnElasticHeadReservesItsLeast) {
  NodeView node{NodeId("n"), {}};
  for (uint32_t slot = 0; slot < 8; ++slot) node.slots.push_back({slot, DEVICE_CPU, {}});
  for (uint32_t slot = 0; slot < 4; ++slot) node.slots[slot].holder = {JobId("old"), 1, 0};
  Cluster cluster({node});
  Pass pass(&cluster);
  const Demand head{8, DEVICE_CPU, 0, 0, 5};
  EXPECT_TRUE(pass.Consider({JobId("head"), 0, 1}, head).ranks.empty());
  const Demand second{4, DEVICE_CPU, 0, 0, 1};
  EXPECT_EQ(pass.Consider({JobId("second"), 0, 2}, second).ranks.size(), 3u);
  const Demand rigid{4, DEVICE_CPU};
  const Decision held = pass.Consider({JobId("rigid"), 0, 3}, rigid);
  EXPECT_TRUE(held.ranks.empty());
  EXPECT_EQ(pass.Why(held, rigid), "waiting behind head, for which 5 slots are reserved");
}

}  // namespace
}  // namespace muster::scheduler
