// Ranks that are spread, and ranks that are near each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "coordinator/scheduler/pass.h"
#include "coordinator/scheduler/place.h"

namespace muster::scheduler {
namespace {

// "a:4 b:2": nodes with that many free slots.
std::vector<NodeView> NodesWithFree(const std::string& text) {
  std::vector<NodeView> nodes;
  for (const absl::string_view part : absl::StrSplit(text, ' ')) {
    NodeView& node = nodes.emplace_back();
    node.id = NodeId(std::string(part.substr(0, 1)));
    for (uint32_t slot = 0; slot < static_cast<uint32_t>(part[2] - '0'); ++slot) {
      node.slots.push_back({slot, DEVICE_CPU, {}});
    }
  }
  return nodes;
}

// "r: a b, s: c d"
TopologyLevel Level(const std::string& key, const std::string& text) {
  TopologyLevel level{key, {}};
  for (const absl::string_view domain : absl::StrSplit(text, ", ")) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(domain, ": ");
    for (const absl::string_view node : absl::StrSplit(parts.second, ' ')) {
      level.domains[NodeId(std::string(node))] = parts.first;
    }
  }
  return level;
}

std::string NodesOfRanks(const Decision& decision) {
  return absl::StrJoin(decision.ranks, "",
                       [](std::string* out, const RankSlot& rank) { out->append(rank.node.value()); });
}

TEST(Spread, OverAsManyNodesAsPossibleEvenly) {
  struct Case {
    std::string nodes;
    uint32_t ranks, together;
    std::string placed;
  };
  for (const Case& c : std::vector<Case>{{"a:4 b:4 c:4", 3, 1, "abc"},
                                         {"a:4 b:4 c:4", 2, 1, "ab"},
                                         {"a:1 b:4 c:4", 6, 1, "bbbcca"},
                                         {"a:4 b:4", 8, 1, "aaaabbbb"},
                                         {"a:4 b:3 c:2", 6, 2, "aabbcc"},
                                         {"a:4 b:3 c:1", 6, 2, "aaaabb"}}) {
    Demand demand{c.ranks, DEVICE_CPU};
    demand.multiple = demand.together = c.together;
    demand.spread = true;
    EXPECT_EQ(NodesOfRanks(Cluster(NodesWithFree(c.nodes)).Place(demand)), c.placed) << c.nodes;
  }
}

TEST(Spread, NodesOfTheLastChoiceComeLast) {
  Demand demand{3, DEVICE_CPU};
  demand.spread = true;
  demand.last_choice = {NodeId("a")};
  EXPECT_EQ(NodesOfRanks(Cluster(NodesWithFree("a:4 b:2")).Place(demand)), "bba");
}

TEST(Topology, PreferredMeansOneDomainIfThatIsPossibleElseFew) {
  const TopologyLevel by_switch = Level("switch", "s1: a b, s2: c d, s3: e f"),
                      rack = Level("rack", "r1: a b c d, r2: e f");
  struct Case {
    std::string nodes;
    uint32_t ranks;
    std::vector<TopologyLevel> preferred;
    std::string placed;
  };
  for (const Case& c : std::vector<Case>{
           {"a:3 b:1 c:2 d:2 e:4 f:4", 4, {by_switch}, "aaab"},          // of full switches the first
           {"a:3 b:1 c:2 d:1 e:4 f:4", 3, {by_switch}, "ccd"},           // the fullest that holds all
           {"a:3 b:1 c:2 d:2 e:1 f:1", 6, {by_switch, rack}, "aaabcc"},  // no switch does, but a rack
           {"a:1 b:1 c:1 d:1 e:2 f:1", 5, {by_switch}, "eefab"},         // few switches
           {"a:1 b:1 c:1 d:1 e:2 f:1", 5, {by_switch, rack}, "abcdf"},   // few racks, and few switches there
           {"a:2 g:2", 3, {by_switch}, "aag"},                           // a node without the label is alone
       }) {
    Demand demand{c.ranks, DEVICE_CPU};
    demand.preferred = c.preferred;
    EXPECT_EQ(NodesOfRanks(Cluster(NodesWithFree(c.nodes)).Place(demand)), c.placed) << c.nodes;
  }
}

// A stage gathers its parameters between its ranks, so each is on one node if all can be.
TEST(Stages, AreWholeOnNodesIfAllCanBe) {
  const TopologyLevel by_switch = Level("switch", "s1: a b, s2: c d, s3: e"), rack = Level("rack", "r: a b c d");
  struct Case {
    std::string nodes;
    uint32_t ranks, stages, together;
    std::string placed;
    std::vector<TopologyLevel> preferred = {};
    std::set<NodeId> last_choice = {};
    bool spread = false;
    uint32_t least = 0, context = 1;
  };
  for (const Case& c : std::vector<Case>{
           {"a:4 b:3", 6, 2, 1, "bbbaaa"},
           {"a:8 b:6", 6, 2, 1, "bbbbbb"},         // of nodes that hold as many stages the fullest
           {"a:5 b:4 c:3", 9, 3, 1, "cccbbbaaa"},  // on three nodes, though two have nine slots
           {"a:6 b:4 c:2", 8, 2, 2, "bbbbaaaa"},
           {"a:2 b:2 c:2", 6, 2, 1, "aabbcc"},                          // no node holds three ranks
           {"a:4 b:1 c:1", 6, 2, 1, "aaaabc"},                          // one node does, but not for both stages
           {"a:5 b:3", 9, 3, 1, "aaaabb", {}, {}, false, 3},            // elastic: stages of two
           {"a:4 b:2 c:3 d:3", 6, 2, 1, "cccddd", {by_switch}},         // a switch that holds them whole
           {"a:4 b:2 c:3 d:2", 6, 2, 1, "aaaabb", {by_switch, rack}},   // one switch comes before whole stages
           {"a:4 b:1 c:3 d:1 e:3", 9, 3, 1, "aaaabcccd", {by_switch}},  // and so do few
           {"a:4 b:2 c:3", 6, 2, 1, "aaaabb", {}, {NodeId("c")}},       // and avoiding the last choice
           {"a:4 b:1 c:3", 6, 2, 1, "aaaccc", {}, {NodeId("c")}},       // which gets some ranks anyway
           {"a:4 b:3", 6, 2, 1, "aaabbb", {}, {}, true},                // evenly
           {"a:4 b:4 c:4", 6, 2, 1, "aabbcc", {}, {}, true},
           // Ranks that share sequences: pairs on one node, of nodes with equally many the fullest first; and pairs
           // where whole stages do not go.
           {"a:5 b:1 c:4", 6, 1, 1, "ccccaa", {}, {}, false, 0, 2},
           {"a:3 b:3 c:2", 6, 1, 1, "ccaabb", {}, {}, false, 0, 2},
           {"a:3 b:3", 6, 1, 1, "aaabbb", {}, {}, false, 0, 2},  // no pairs
           {"a:5 b:3 c:2", 8, 2, 1, "aaaaccbb", {}, {}, false, 0, 2},
           {"a:4 b:5", 8, 2, 2, "aaaabbbb", {}, {}, false, 0, 2}}) {
    Demand demand{c.ranks, DEVICE_CPU};
    demand.multiple = c.stages * c.together * c.context, demand.together = c.together, demand.least = c.least;
    demand.context = c.context;
    demand.preferred = c.preferred, demand.last_choice = c.last_choice, demand.spread = c.spread;
    EXPECT_EQ(NodesOfRanks(Cluster(NodesWithFree(c.nodes)).Place(demand)), c.placed) << c.nodes;
  }
}

// By counting, on random nodes, with groups of ranks on one node, and of elastic jobs: whether all stages are whole,
// and that this never changes how many ranks are placed.
TEST(Stages, RandomClusters) {
  std::mt19937 random(5);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  int whole = 0, cut = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    std::vector<uint32_t> free;
    for (uint32_t n = 0; n < 1 + below(6); ++n) {
      free.push_back(1 + below(9));
      absl::StrAppend(&text, n > 0 ? " " : "", std::string(1, static_cast<char>('a' + n)), ":", free.back());
    }
    const uint32_t together = 1 + below(2), stages = 2 + below(3);
    Demand demand{stages * together * (1 + below(4)), DEVICE_CPU};
    demand.multiple = stages * together, demand.together = together;
    if (below(2) == 0) demand.least = stages * together;
    const Decision decision = Cluster(NodesWithFree(text)).Place(demand);
    uint32_t all = 0;
    for (const uint32_t slots : free) all += slots - slots % together;
    const uint32_t most = std::min(all, demand.ranks) / demand.multiple * demand.multiple;
    ASSERT_EQ(decision.ranks.size(), most < demand.needed() ? 0 : most) << i;
    if (decision.ranks.empty()) continue;
    const uint32_t each = most / stages;
    uint32_t holds = 0;
    for (const uint32_t slots : free) holds += slots / each;
    std::map<NodeId, uint32_t> first;  // no node appears twice
    bool are_whole = true;
    for (uint32_t rank = 0; rank < most; ++rank) {
      const NodeId& node = decision.ranks[rank].node;
      const auto [seen, fresh] = first.emplace(node, rank);
      ASSERT_TRUE(fresh || decision.ranks[rank - 1].node == node) << i;
      are_whole &= node == decision.ranks[rank - rank % each].node;
      ASSERT_EQ(node, decision.ranks[rank - rank % together].node) << i;
    }
    ASSERT_TRUE(are_whole || holds < stages) << i << ": " << text;
    (holds < stages ? cut : whole) += 1;
  }
  EXPECT_GT(whole, 1000);
  EXPECT_GT(cut, 200);
}

TEST(Topology, RequiredMeansOneDomainOrWaiting) {
  const TopologyLevel rack = Level("rack", "r1: a b, r2: c d");
  Demand demand{4, DEVICE_CPU};
  demand.required = rack;
  EXPECT_EQ(NodesOfRanks(Cluster(NodesWithFree("a:3 b:2 c:2 d:2")).Place(demand)), "ccdd");
  std::vector<NodeView> nodes = NodesWithFree("a:3 b:2 c:2 d:1");
  nodes[0].slots[0].holder = nodes[0].slots[1].holder = {JobId("other"), 0, 1};
  const Decision waits = Cluster(nodes).Place(demand);
  EXPECT_TRUE(waits.ranks.empty());
  EXPECT_TRUE(waits.fits_when_idle);
  EXPECT_EQ(waits.reason, "needs 4 slots, all on nodes with the same rack, at most 3 free on one (in use: other)");
  demand.ranks = 6;
  const Decision never = Cluster(nodes).Place(demand);
  EXPECT_FALSE(never.fits_when_idle);
  EXPECT_EQ(never.reason,
            "can never start on these nodes: needs 6 slots, all on nodes with the same rack, the largest rack has 5");
  demand.least = 3;  // of the racks that hold so many, the emptiest
  EXPECT_EQ(NodesOfRanks(Cluster(NodesWithFree("a:2 b:1 c:2 d:2")).Place(demand)), "ccdd");
}

// By counting: a gang is in one domain, or no domain has enough free slots for it; a preference costs no rank.
TEST(Topology, RandomClusters) {
  std::mt19937 random(3);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  uint64_t placed = 0, refused = 0, near = 0;
  for (int i = 0; i < 5000; ++i) {
    std::vector<NodeView> nodes;
    TopologyLevel level{"rack", {}};
    std::map<std::string, uint64_t> free;
    const uint32_t together = 1 + below(3);
    uint64_t all = 0;
    for (uint32_t n = 1 + below(8); n > 0; --n) {
      NodeView& node = nodes.emplace_back();
      node.id = NodeId(absl::StrCat("n", n));
      const std::string rack = absl::StrCat("r", below(3));
      level.domains[node.id] = rack;
      uint64_t here = 0;
      for (uint32_t s = 0; s < 1 + below(6); ++s) {
        node.slots.push_back({s, DEVICE_CPU, {}});
        if (below(3) == 0) node.slots.back().holder = {JobId("other"), 0, 1};
        here += node.slots.back().holder.job.empty();
      }
      free[rack] += here - here % together;
      all += here - here % together;
    }
    uint64_t most = 0;
    for (const auto& [rack, slots] : free) most = std::max(most, slots);
    Demand demand{together * (1 + below(6)), DEVICE_CPU};
    demand.multiple = demand.together = together;
    demand.spread = below(2) == 0;
    demand.required = level;
    const auto domains = [&](const Decision& decision) {
      std::set<std::string> in;
      for (const RankSlot& rank : decision.ranks) in.insert(level.domains.at(rank.node));
      return in.size();
    };
    const Decision within = Cluster(nodes).Place(demand);
    ASSERT_EQ(within.ranks.size(), most >= demand.ranks ? demand.ranks : 0) << i;
    ASSERT_LE(domains(within), 1u) << i;
    (within.ranks.empty() ? refused : placed) += 1;
    demand.required.reset();
    demand.preferred = {level};
    const Decision preferred = Cluster(nodes).Place(demand);
    ASSERT_EQ(preferred.ranks.size(), all >= demand.ranks ? demand.ranks : 0) << i;
    if (preferred.ranks.empty()) continue;
    ASSERT_EQ(domains(preferred) == 1, most >= demand.ranks) << i;
    near += domains(preferred) == 1;
  }
  EXPECT_GT(placed, 1000u);
  EXPECT_GT(refused, 1000u);
  EXPECT_GT(near, 1000u);
}

// The head reserves slots in one rack: the other is free for others.
TEST(Topology, AHeadReservesSlotsInOneDomain) {
  std::vector<NodeView> nodes = NodesWithFree("a:4 b:4");
  nodes[0].slots[0].holder = nodes[1].slots[0].holder = nodes[1].slots[1].holder = {JobId("running"), 0, 1};
  Cluster cluster(nodes);
  Pass pass(&cluster);
  Demand demand{4, DEVICE_CPU};
  demand.required = Level("rack", "r1: a, r2: b");
  const Claim head{JobId("head"), 0, 2};
  EXPECT_TRUE(pass.Consider(head, demand).ranks.empty());
  const auto start = [&](const std::string& job, uint64_t sequence, uint32_t ranks) {
    const Claim claim{JobId(job), 0, sequence};
    const Decision decision = pass.Consider(claim, {ranks, DEVICE_CPU});
    if (!decision.ranks.empty()) pass.Start(claim, decision);
    return NodesOfRanks(decision);
  };
  EXPECT_EQ(start("large", 3, 3), "") << "only two slots are not reserved";
  EXPECT_EQ(start("small", 4, 2), "bb");
  EXPECT_EQ(start("last", 5, 1), "");
}

}  // namespace
}  // namespace muster::scheduler
