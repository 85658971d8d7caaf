// Placement and the scheduling pass over random clusters and random streams of jobs.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "coordinator/scheduler/pass.h"
#include "coordinator/scheduler/place.h"
#include "coordinator/scheduler/queue_order.h"

namespace muster::scheduler {
namespace {

std::vector<NodeView> AnyNodes() {
  const size_t count = *rc::gen::inRange<size_t>(0, 7);
  std::vector<NodeView> nodes;
  for (size_t n = 0; n < count; ++n) {
    NodeView& node = nodes.emplace_back();
    node.id = NodeId(absl::StrCat("node-", n));
    node.availability = *rc::gen::weightedElement<Availability>({{7, Availability::kTakesRanks},
                                                                 {1, Availability::kAway},
                                                                 {1, Availability::kDraining},
                                                                 {1, Availability::kLost}});
    const Device device = *rc::gen::weightedElement<Device>({{3, DEVICE_CPU}, {1, DEVICE_CUDA}});
    const uint32_t slots = *rc::gen::inRange<uint32_t>(0, 9);
    for (uint32_t s = 0; s < slots; ++s) {
      SlotView& slot = node.slots.emplace_back();
      slot.index = s;
      slot.device = device;
      if (*rc::gen::weightedElement<bool>({{1, true}, {2, false}})) {
        slot.holder = {JobId(absl::StrCat("job-", *rc::gen::inRange(0, 5))), 0, 1};
      }
    }
  }
  return nodes;
}

std::vector<size_t> FreeByNode(const std::vector<NodeView>& nodes, Device device) {
  std::vector<size_t> free;
  for (const NodeView& node : nodes) {
    if (node.availability != Availability::kTakesRanks) continue;
    free.push_back(static_cast<size_t>(std::count_if(node.slots.begin(), node.slots.end(), [&](const SlotView& slot) {
      return slot.device == device && slot.holder.job.empty();
    })));
  }
  std::sort(free.rbegin(), free.rend());
  return free;
}

TEST(PlaceProperties, AllRanksOnFreeSlotsOfFewestNodesOrNone) {
  EXPECT_TRUE(rc::check([] {
    std::vector<NodeView> nodes = AnyNodes();
    Demand demand{*rc::gen::inRange<uint32_t>(1, 30), *rc::gen::element<Device>(DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA)};
    if (*rc::gen::arbitrary<bool>()) demand.least = *rc::gen::inRange<uint32_t>(1, 40);
    const Decision decision = Cluster(nodes).Place(demand);
    RC_ASSERT(decision.device == DEVICE_CPU || decision.device == DEVICE_CUDA);
    const std::vector<size_t> free = FreeByNode(nodes, decision.device);
    const size_t all = std::accumulate(free.begin(), free.end(), size_t{0});
    const size_t least = demand.least == 0 ? demand.ranks : std::min(demand.least, demand.ranks);
    RC_ASSERT(decision.ranks.size() == (all >= least ? std::min<size_t>(all, demand.ranks) : 0));
    RC_ASSERT(decision.reason.empty() == !decision.ranks.empty());
    if (decision.ranks.empty()) return;

    std::map<NodeId, const NodeView*> by_id;
    for (const NodeView& node : nodes) by_id[node.id] = &node;
    std::set<std::pair<NodeId, uint32_t>> taken;
    std::vector<NodeId> order;  // nodes in rank order
    for (const RankSlot& rank : decision.ranks) {
      const NodeView& node = *by_id.at(rank.node);
      RC_ASSERT(node.availability == Availability::kTakesRanks);
      RC_ASSERT(node.slots.at(rank.slot).holder.job.empty());
      RC_ASSERT(node.slots.at(rank.slot).device == decision.device);
      RC_ASSERT(taken.insert({rank.node, rank.slot}).second);
      if (order.empty() || order.back() != rank.node) order.push_back(rank.node);
    }
    // The ranks of a node are consecutive.
    RC_ASSERT(std::set<NodeId>(order.begin(), order.end()).size() == order.size());
    size_t fewest = 0, held = 0;
    while (held < decision.ranks.size()) held += free.at(fewest++);
    RC_ASSERT(order.size() == fewest);

    // The result does not depend on the order of the nodes.
    std::reverse(nodes.begin(), nodes.end());
    const Decision again = Cluster(nodes).Place(demand);
    for (size_t i = 0; i < decision.ranks.size(); ++i) {
      RC_ASSERT(again.ranks.at(i).node == decision.ranks[i].node && again.ranks[i].slot == decision.ranks[i].slot);
    }
  }));
}

// A cluster of one device with a stream of jobs, in rounds.
class Stream {
 public:
  explicit Stream(std::vector<uint32_t> slots_of_nodes) {
    for (size_t n = 0; n < slots_of_nodes.size(); ++n) {
      NodeView& node = nodes_.emplace_back();
      node.id = NodeId(absl::StrCat("n", n));
      for (uint32_t s = 0; s < slots_of_nodes[n]; ++s) node.slots.push_back({s, DEVICE_CPU, {}});
    }
  }

  // `least`: least number of ranks; 0: all. Both in groups of `together`.
  // `limit`: its time limit in rounds, at least `rounds`; 0: none.
  JobId Submit(uint32_t ranks, uint32_t rounds, int32_t priority, uint32_t least = 0, uint32_t together = 1,
               uint32_t limit = 0) {
    Claim claim{JobId(absl::StrCat("j", ++sequence_)), priority, sequence_};
    if (limit > 0) claim.ends_in = absl::Minutes(limit);
    jobs_[claim.job] = {claim, {ranks * together, DEVICE_CPU, 0, 0, least * together, together, together}, rounds};
    return claim.job;
  }

  // Nodes of these numbers, from a round to another one, which are counted from the first.
  void Reserve(uint32_t begin, uint32_t end, const std::set<uint32_t>& nodes) {
    Window& window = windows_.emplace_back(Window{begin, end, {}});
    for (const uint32_t n : nodes) window.nodes.insert(NodeId(absl::StrCat("n", n)));
  }

  void Require(const JobId& id, const TopologyLevel& level) { jobs_.at(id).demand.required = level; }

  // Ends jobs that are due and runs a scheduling pass.
  void Round() {
    ++now_;
    for (auto& [id, job] : jobs_) {
      if (job.started && !job.ended) {
        job.claim.ends_in -= absl::Minutes(1);
        Hold(id, job, true);
      }
      if (job.started && !job.ended && --job.rounds == 0) {
        job.ended = true;
        Hold(id, job, false);
      }
    }
    std::vector<Claim> queue;
    for (const auto& [id, job] : jobs_) {
      if (!job.started) queue.push_back(job.claim);
    }
    SortQueue(queue);
    Cluster cluster(nodes_);
    Pass pass(&cluster);
    for (const Claim& claim : queue) {
      Job& job = jobs_.at(claim.job);
      const Decision decision = pass.Consider(claim, Now(job));
      if (decision.ranks.empty()) continue;
      CheckWindows(claim, decision);
      pass.Start(claim, decision);
      job.started = true;
      job.placed = decision.ranks;
      Hold(claim.job, job, true);
    }
    predicted_.clear();
    for (const auto& [id, job] : jobs_) {
      if (const absl::Duration in = pass.StartsIn(id); in < absl::InfiniteDuration()) predicted_[id] = in;
    }
  }

  // By the last pass; infinite: it predicts nothing.
  absl::Duration Predicted(const JobId& id) const {
    const auto found = predicted_.find(id);
    return found == predicted_.end() ? absl::InfiniteDuration() : found->second;
  }

  bool Started(const JobId& id) const { return jobs_.at(id).started; }
  std::optional<JobId> First() const {
    std::vector<Claim> queue;
    for (const auto& [id, job] : jobs_) {
      if (!job.started) queue.push_back(job.claim);
    }
    SortQueue(queue);
    return queue.empty() ? std::nullopt : std::optional(queue.front().job);
  }
  // Until every job that runs now has ended.
  uint32_t LongestLeft() const {
    uint32_t longest = 0;
    for (const auto& [id, job] : jobs_) {
      if (job.started && !job.ended) longest = std::max(longest, job.rounds);
    }
    return longest;
  }
  uint64_t overtaken(const JobId& id) const {
    const Claim& claim = jobs_.at(id).claim;
    return static_cast<uint64_t>(std::count_if(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
      return entry.second.started && Before(claim, entry.second.claim);
    }));
  }

 private:
  struct Job {
    Claim claim;
    Demand demand;
    uint32_t rounds = 0;  // left
    bool started = false;
    bool ended = false;
    std::vector<RankSlot> placed;
  };
  struct Window {
    uint32_t begin = 0, end = 0;
    std::set<NodeId> nodes;
  };
  static absl::Duration Rounds(uint32_t to, uint32_t now) { return absl::Minutes(int64_t{to} - int64_t{now}); }
  Demand Now(const Job& job) const {
    Demand demand = job.demand;
    for (const Window& window : windows_) {
      const absl::Duration begin = window.begin <= now_ ? -absl::InfiniteDuration() : Rounds(window.begin, now_);
      demand.closed.push_back({begin - job.claim.ends_in, Rounds(window.end, now_),
                               std::make_shared<const std::set<NodeId>>(window.nodes)});
    }
    return demand;
  }
  void CheckWindows(const Claim& claim, const Decision& decision) const {
    for (const Window& window : windows_) {
      if (window.end <= now_ || claim.ends_in <= Rounds(window.begin, now_)) continue;
      for (const RankSlot& rank : decision.ranks) EXPECT_FALSE(window.nodes.contains(rank.node)) << rank.node.value();
    }
  }
  void Hold(const JobId&, const Job& job, bool hold) {
    for (const RankSlot& rank : job.placed) {
      for (NodeView& node : nodes_) {
        if (node.id == rank.node) node.slots.at(rank.slot).holder = hold ? job.claim : Claim{};
      }
    }
  }

  std::vector<NodeView> nodes_;
  std::map<JobId, Job> jobs_;
  std::map<JobId, absl::Duration> predicted_;
  std::vector<Window> windows_;
  uint32_t now_ = 0;
  uint64_t sequence_ = 0;
};

// However many small jobs keep coming, of its priority or a lower one: once the large job is first in the queue, it
// starts when the jobs that ran at that moment have ended. Slots that it does not need are not left idle. Some jobs'
// ranks, also the large one's, must be together.
TEST(PassProperties, AStreamOfSmallJobsDoesNotStarveALargeOne) {
  uint64_t overtakers = 0, overtakers_of_groups = 0;
  EXPECT_TRUE(rc::check([&] {
    const auto sizes =
        *rc::gen::container<std::vector<uint32_t>>(*rc::gen::inRange<size_t>(1, 8), rc::gen::inRange<uint32_t>(1, 9));
    const uint32_t total = std::accumulate(sizes.begin(), sizes.end(), 0u);
    const uint32_t together = *rc::gen::inRange(1u, 1 + *std::max_element(sizes.begin(), sizes.end()));
    const uint32_t groups = std::accumulate(sizes.begin(), sizes.end(), 0u,
                                            [&](uint32_t sum, uint32_t slots) { return sum + slots / together; });
    Stream stream(sizes);
    const auto small = [&] {
      stream.Submit(*rc::gen::inRange<uint32_t>(1, std::max(2u, total / 2)), *rc::gen::inRange<uint32_t>(1, 9),
                    *rc::gen::inRange<int32_t>(-1, 1), *rc::gen::inRange<uint32_t>(0, 3),
                    *rc::gen::weightedElement<uint32_t>({{3, 1}, {1, 2}}));
    };
    for (int i = *rc::gen::inRange(0, 12); i > 0; --i) small();
    stream.Round();
    const JobId large = stream.Submit(*rc::gen::inRange<uint32_t>(1, groups + 1), 3, 0, 0, together);
    std::optional<uint32_t> bound;
    uint32_t waited = 0;
    for (int round = 0; round < 400 && !stream.Started(large); ++round) {
      for (int i = *rc::gen::inRange(0, 3); i > 0; --i) small();
      if (!bound.has_value() && stream.First() == large) bound = stream.LongestLeft();
      stream.Round();
      if (bound.has_value()) RC_ASSERT(++waited <= std::max(1u, *bound));
    }
    RC_ASSERT(stream.Started(large));
    (together > 1 ? overtakers_of_groups : overtakers) += stream.overtaken(large);
  }));
  EXPECT_GT(overtakers, 0u) << "no job ever used slots that the head does not need";
  EXPECT_GT(overtakers_of_groups, 0u);
}

// A job whose ranks must all be in one rack, and small jobs that may run anywhere: they leave it a rack.
TEST(PassProperties, SmallJobsDoNotStarveOneThatNeedsARack) {
  std::mt19937 random(7);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  uint64_t overtakers = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<uint32_t> sizes(2 + below(5));
    TopologyLevel racks{"rack", {}};
    std::map<std::string, uint32_t> slots;
    for (size_t n = 0; n < sizes.size(); ++n) {
      sizes[n] = 1 + below(6);
      const std::string rack = absl::StrCat("r", n % 3);
      racks.domains[NodeId(absl::StrCat("n", n))] = rack;
      slots[rack] += sizes[n];
    }
    uint32_t largest = 0;
    for (const auto& [rack, its] : slots) largest = std::max(largest, its);
    Stream stream(sizes);
    const auto small = [&] {
      const uint32_t rounds = 1 + below(8);
      stream.Submit(1 + below(3), rounds, 0, 0, 1, below(3) == 0 ? rounds + below(3) : 0);
    };
    for (uint32_t jobs = 3 + below(8); jobs > 0; --jobs) small();
    stream.Round();
    const JobId large = stream.Submit(1 + below(largest), 3, 0);
    stream.Require(large, racks);
    uint32_t waited = 0;
    while (!stream.Started(large)) {
      for (uint32_t jobs = 1 + below(3); jobs > 0; --jobs) small();
      if (stream.First() == large) {
        ASSERT_LE(++waited, 3 * 8u) << i;  // as many rounds as a job runs, in each rack
      }
      stream.Round();
    }
    overtakers += stream.overtaken(large);
  }
  EXPECT_GT(overtakers, 1000u);
}

// Whatever overtakes a head whose start is predicted, with a time limit or without, it starts by then.
TEST(PassProperties, APredictedStartIsKept) {
  std::mt19937 random(5);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  uint64_t predictions = 0, overtakers = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<uint32_t> sizes(1 + below(4));
    for (uint32_t& slots : sizes) slots = 1 + below(8);
    const uint32_t total = std::accumulate(sizes.begin(), sizes.end(), 0u);
    const uint32_t together = 1 + below(*std::max_element(sizes.begin(), sizes.end()));
    const uint32_t groups = std::accumulate(sizes.begin(), sizes.end(), 0u,
                                            [&](uint32_t sum, uint32_t slots) { return sum + slots / together; });
    Stream stream(sizes);
    const auto small = [&] {
      const uint32_t rounds = 1 + below(9), limit = below(4) == 0 ? 0 : rounds + below(4);
      stream.Submit(1 + below(std::max(1u, total / 2)), rounds, 0, 0, 1, limit);
    };
    for (uint32_t jobs = 2 + below(8); jobs > 0; --jobs) small();
    stream.Round();
    const JobId large = stream.Submit(1 + below(groups), 3, 0, 0, together);
    absl::Duration predicted = absl::InfiniteDuration();
    for (int round = 0; round < 100 && !stream.Started(large); ++round) {
      for (uint32_t jobs = below(4); jobs > 0; --jobs) small();
      stream.Round();
      if (stream.Started(large)) break;
      const absl::Duration now = stream.Predicted(large);
      predictions += now < absl::InfiniteDuration();
      ASSERT_LE(now, predicted) << "seed " << i << ", round " << round;
      ASSERT_GT(now, absl::ZeroDuration());
      predicted = now - absl::Minutes(1);
    }
    overtakers += stream.overtaken(large);
  }
  EXPECT_GT(predictions, 1000u);
  EXPECT_GT(overtakers, 1000u);
}

// Nor do windows in which nodes are reserved for others, if they were known before. The job is the first in the queue;
// that it may have to wait for a window to end does not matter.
TEST(PassProperties, APredictedStartIsKeptWhereNodesAreReserved) {
  std::mt19937 random(13);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  uint64_t predictions = 0, overtakers = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<uint32_t> sizes(1 + below(4));
    for (uint32_t& slots : sizes) slots = 1 + below(8);
    const uint32_t total = std::accumulate(sizes.begin(), sizes.end(), 0u);
    Stream stream(sizes);
    for (uint32_t windows = 1 + below(3); windows > 0; --windows) {
      const uint32_t begin = 1 + below(15);
      std::set<uint32_t> nodes;
      for (uint32_t n = 0; n < sizes.size(); ++n) {
        if (below(2) == 0) nodes.insert(n);
      }
      stream.Reserve(begin, begin + 1 + below(6), nodes);
    }
    const auto small = [&] {
      const uint32_t rounds = 1 + below(9), limit = below(4) == 0 ? 0 : rounds + below(4);
      stream.Submit(1 + below(std::max(1u, total / 2)), rounds, 0, 0, 1, limit);
    };
    for (uint32_t jobs = 2 + below(8); jobs > 0; --jobs) small();
    stream.Round();
    const JobId large = stream.Submit(1 + below(total), 3, 0, 0, 1, below(2) == 0 ? 0 : 3 + below(4));
    absl::Duration predicted = absl::InfiniteDuration();
    for (int round = 0; round < 100 && !stream.Started(large); ++round) {
      for (uint32_t jobs = below(4); jobs > 0; --jobs) small();
      const bool first = stream.First() == large;
      stream.Round();
      if (stream.Started(large) || !first) continue;
      const absl::Duration now = stream.Predicted(large);
      predictions += now < absl::InfiniteDuration();
      ASSERT_LE(now, predicted) << "seed " << i << ", round " << round;
      ASSERT_GT(now, absl::ZeroDuration());
      predicted = now - absl::Minutes(1);
    }
    EXPECT_TRUE(stream.Started(large)) << "seed " << i;
    overtakers += stream.overtaken(large);
  }
  EXPECT_GT(predictions, 1000u);
  EXPECT_GT(overtakers, 1000u);
}

// The same for jobs of one to three ranks, which fit beside each other on any node, and a job whose ranks must be four
// together: what is left must lie together. Random, but always the same.
TEST(PassProperties, SmallJobsDoNotBreakUpWhatALargeOneNeeds) {
  std::mt19937 random(11);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  uint64_t overtakers = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<uint32_t> sizes(2 + below(4));
    uint32_t groups = 0;
    for (uint32_t& slots : sizes) slots = 4 + below(5), groups += slots / 4;
    Stream stream(sizes);
    for (uint32_t jobs = 3 + below(8); jobs > 0; --jobs) stream.Submit(1 + below(3), 1 + below(9), 0);
    stream.Round();
    const JobId large = stream.Submit(1 + below(groups), 3, 0, 0, 4);
    std::optional<uint32_t> bound;
    for (uint32_t waited = 0; waited < 100 && !stream.Started(large);) {
      if (!bound.has_value() && stream.First() == large) bound = stream.LongestLeft();
      for (uint32_t jobs = below(4); jobs > 0; --jobs) stream.Submit(1 + below(3), 1 + below(30), 0);
      stream.Round();
      if (bound.has_value()) {
        ASSERT_LE(++waited, std::max(1u, *bound)) << i;
      }
    }
    overtakers += stream.overtaken(large);
  }
  EXPECT_GT(overtakers, 1000u);
}

}  // namespace
}  // namespace muster::scheduler
