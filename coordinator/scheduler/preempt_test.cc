// Tables: which running jobs a waiting job may preempt.
#include "coordinator/scheduler/preempt.h"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

namespace muster::scheduler {
namespace {

constexpr absl::Duration kUnknown = absl::InfiniteDuration();

Victim Of(const std::string& job, const std::string& project, int32_t priority, bool borrows, uint64_t slots = 1) {
  Victim victim;
  victim.claim = {JobId(job), priority, 1, kUnknown, borrows, 0, 0};
  victim.project = project;
  victim.slots = slots;
  return victim;
}

// Projects a and b are in a cohort with two slots each, c is in another one, d has no quota.
TEST(Preempt, WhoMayTakeFromWhom) {
  Quotas quotas;
  quotas.Set("a", DEVICE_CPU, {.nominal = 2, .cohort = "x"});
  quotas.Set("b", DEVICE_CPU, {.nominal = 2, .cohort = "x"});
  quotas.Set("c", DEVICE_CPU, {.nominal = 2, .cohort = "y"});
  quotas.Hold("b", DEVICE_CPU, 3);
  quotas.Hold("c", DEVICE_CPU, 3);
  quotas.Hold("d", DEVICE_CPU, 1);
  struct Case {
    const char* what;
    bool claimant_borrows;
    int32_t priority;
    Victim victim;
    bool never, by_priority;  // whether it may, by these rules
  };
  const std::vector<Case> cases = {
      {"reclaim of lent slots", false, 0, Of("v", "b", 9, true), true, true},
      {"b's own are not for others", false, 9, Of("v", "b", 0, false), false, false},
      {"another cohort's are not", false, 0, Of("v", "c", 0, true), false, false},
      {"who has no quota has only lent slots", false, 0, Of("v", "d", 9, true), true, true},
      {"a borrower reclaims nothing", true, 0, Of("v", "b", 0, true), false, false},
      {"but it may have priority over another", true, 1, Of("v", "b", 0, true), false, true},
      {"not over one on its own slots", true, 9, Of("v", "a", 0, false), false, false},
      {"in its own project by priority", false, 1, Of("v", "a", 0, false), false, true},
      {"not with the same", false, 0, Of("v", "a", 0, false), false, false},
      {"nor with a lower one", false, -1, Of("v", "a", 0, false), false, false},
  };
  for (const Case& c : cases) {
    Claimant claimant{{JobId("w"), c.priority, 9, kUnknown, c.claimant_borrows, 0, 0}, "a", {1, DEVICE_CPU}, false};
    EXPECT_EQ(MayPreempt(claimant, c.victim, quotas), c.never) << c.what;
    claimant.by_priority = true;
    EXPECT_EQ(MayPreempt(claimant, c.victim, quotas), c.by_priority) << c.what;
    // No two can preempt each other.
    if (MayPreempt(claimant, c.victim, quotas)) {
      const Victim back = Of("w", "a", c.priority, c.claimant_borrows);
      EXPECT_FALSE(MayPreempt({c.victim.claim, c.victim.project, {1, DEVICE_CPU}, true}, back, quotas)) << c.what;
    }
  }
}

// One project; jobs of priority 0 hold the slots that their letters stand for. "F" is free.
std::string Chosen(const std::string& slots, uint32_t ranks, std::vector<Victim> candidates, uint32_t together = 1) {
  std::vector<NodeView> nodes;
  for (const char c : slots) {
    if (c == ' ' || nodes.empty()) nodes.emplace_back().id = NodeId(absl::StrCat("n", nodes.size()));
    if (c == ' ') continue;
    SlotView& slot = nodes.back().slots.emplace_back();
    slot.index = static_cast<uint32_t>(nodes.back().slots.size() - 1);
    slot.device = DEVICE_CPU;
    if (c != 'F') slot.holder = {JobId(std::string(1, c)), 0, 1};
  }
  for (Victim& victim : candidates) {
    victim.slots = static_cast<uint64_t>(std::count(slots.begin(), slots.end(), victim.claim.job.value()[0]));
  }
  Demand demand{.ranks = ranks, .device = DEVICE_CPU, .multiple = together, .together = together};
  std::vector<std::string> names;
  for (const JobId& id : ChooseVictims(nodes, {{JobId("w"), 1, 99}, "", demand, true}, std::move(candidates), {})) {
    names.push_back(id.value());
  }
  return absl::StrJoin(names, " ");
}

Victim Costs(const std::string& job, double lost, uint64_t sequence = 1, bool preemptible = false, uint32_t least = 0) {
  Victim victim = Of(job, "", 0, false);
  victim.claim.sequence = sequence;
  victim.lost_slot_seconds = lost;
  victim.preemptible = preemptible;
  victim.fewer = {least, DEVICE_CPU};
  return victim;
}

TEST(Preempt, TheCheapestWhoAreEnough) {
  EXPECT_EQ(Chosen("ab", 1, {Costs("a", 10), Costs("b", 20)}), "a") << "least work lost";
  EXPECT_EQ(Chosen("ab", 1, {Costs("a", 10), Costs("b", 20, 1, true)}), "b") << "its user said so";
  EXPECT_EQ(Chosen("ab", 1, {Costs("a", 10, 1), Costs("b", 10, 2)}), "b") << "the youngest";
  EXPECT_EQ(Chosen("aFb", 2, {Costs("a", 10), Costs("b", 20)}), "a") << "a free slot counts";
  EXPECT_EQ(Chosen("abbb", 3, {Costs("a", 10), Costs("b", 20)}), "b") << "a would not be enough, and is not needed";
  EXPECT_EQ(Chosen("abc", 4, {Costs("a", 1), Costs("b", 1), Costs("c", 1)}), "") << "not even all are enough";
  EXPECT_EQ(Chosen("axx", 2, {Costs("a", 1)}), "") << "x may not be preempted";
  EXPECT_EQ(Chosen("Fa", 1, {Costs("a", 1)}), "") << "it starts anyway";
}

TEST(Preempt, WhatMustBeTogether) {
  EXPECT_EQ(Chosen("aF bF cc", 2, {Costs("a", 1), Costs("b", 2), Costs("c", 3)}, 2), "a");
  EXPECT_EQ(Chosen("ax bx cc", 2, {Costs("a", 1), Costs("b", 2), Costs("c", 3)}, 2), "c") << "only there two fit";
  EXPECT_EQ(Chosen("aF xF", 2, {Costs("a", 1)}, 2), "a") << "a slot that is free now is one of the two";
}

TEST(Preempt, OnlyWhoHoldsSlotsThatSuitCounts) {
  // b borrows one slot. A job of b on another node comes first by cost, and is not taken for it.
  Quotas quotas;
  quotas.Set("a", DEVICE_CPU, {.nominal = 3, .cohort = "x"});
  quotas.Set("b", DEVICE_CPU, {.nominal = 1, .cohort = "x"});
  quotas.Hold("b", DEVICE_CPU, 2);
  std::vector<NodeView> nodes(2);
  std::vector<Victim> candidates;
  for (const std::string n : {"0", "1"}) {
    NodeView& node = nodes[candidates.size()];
    node.id = NodeId("n" + n);
    node.slots.push_back({.index = 0, .device = DEVICE_CPU, .holder = {JobId("v" + n), 0, 1}});
    candidates.push_back(Of("v" + n, "b", 0, true));
    candidates.back().lost_slot_seconds = static_cast<double>(candidates.size());
  }
  const Demand demand{.ranks = 1, .device = DEVICE_CPU, .avoid = {NodeId("n0")}};
  EXPECT_EQ(ChooseVictims(nodes, {{JobId("w"), 0, 99}, "a", demand, false}, candidates, quotas),
            std::vector<JobId>{JobId("v1")});
}

// Whatever Cluster::Place says of the nodes without some of the jobs is what victims are chosen by: with all of them
// the claimant fits, without any one of them it does not; and none are chosen only where it fits anyway, or not even
// without all.
TEST(Preempt, AsManyAsPlaceNeeds) {
  std::mt19937 random(7);
  const auto below = [&random](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  int some = 0, impossible = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<NodeView> nodes(1 + below(5));
    std::map<std::string, Victim> jobs;
    Demand demand{.ranks = 1 + below(6), .device = DEVICE_CPU, .slot_bytes = below(2) * 8};
    if (below(3) == 0) demand.together = demand.multiple = 2, demand.ranks = 2 * (1 + below(3));
    if (below(3) == 0) demand.required = TopologyLevel{"rack", {}};
    for (size_t n = 0; n < nodes.size(); ++n) {
      nodes[n].id = NodeId(absl::StrCat("n", n));
      if (below(6) == 0) nodes[n].availability = Availability::kAway;
      const bool apart = demand.required.has_value() && below(5) == 0;
      if (demand.required.has_value() && !apart) demand.required->domains[nodes[n].id] = absl::StrCat("r", below(2));
      if (apart || below(5) == 0) demand.avoid.insert(nodes[n].id);
      for (uint32_t i = 0; i < 4; ++i) {
        SlotView& slot = nodes[n].slots.emplace_back();
        slot = {.index = i, .device = below(8) == 0 ? DEVICE_CUDA : DEVICE_CPU, .memory_bytes = below(3) * 6};
        slot.stuck = below(10) == 0;
        if (below(4) == 0) continue;
        const std::string name(1, static_cast<char>('a' + below(6)));
        slot.holder = {JobId(name), 0, 1};
        if (name == "f") continue;  // of the same priority
        Victim& victim = jobs.try_emplace(name, Of(name, "", 0, false, 0)).first->second;
        victim.lost_slot_seconds = below(4);
        if (slot.device == DEVICE_CPU) ++victim.slots;
      }
    }
    const auto fits_without = [&](const std::set<JobId>& gone) {
      std::vector<NodeView> left = nodes;
      for (NodeView& node : left) {
        for (SlotView& slot : node.slots) {
          if (gone.contains(slot.holder.job)) slot.holder = {};
        }
      }
      return !Cluster(left).Place(demand).ranks.empty();
    };
    std::vector<Victim> candidates;
    std::set<JobId> all;
    for (const auto& [name, victim] : jobs) candidates.push_back(victim), all.insert(victim.claim.job);
    const auto chosen = ChooseVictims(nodes, {{JobId("w"), 1, 99}, "", demand, true}, candidates, {});
    const std::set<JobId> victims(chosen.begin(), chosen.end());
    if (victims.empty()) {
      EXPECT_TRUE(fits_without({}) || !fits_without(all)) << round;
      impossible += fits_without({}) ? 0 : 1;
      continue;
    }
    ++some;
    EXPECT_TRUE(fits_without(victims)) << round;
    for (const JobId& id : victims) {
      std::set<JobId> fewer = victims;
      fewer.erase(id);
      EXPECT_FALSE(fits_without(fewer)) << round;
    }
  }
  EXPECT_GT(some, 300);
  EXPECT_GT(impossible, 300);
}

// A claimant that cannot start however many jobs stop is looked at in every pass.
TEST(Preempt, ManyVictimsInVainCostLessThanAFewClusters) {
  constexpr int kNodes = 1000;
  std::vector<NodeView> nodes(kNodes);
  std::vector<Victim> candidates;
  Demand selective{.ranks = 2, .device = DEVICE_CPU};  // only the first node, where one slot is of the same priority
  const Demand together{.ranks = 2, .device = DEVICE_CPU, .multiple = 2, .together = 2};  // as is one of every node
  for (int n = 0; n < kNodes; ++n) {
    nodes[n].id = NodeId(absl::StrCat("n", n));
    if (n > 0) selective.avoid.insert(nodes[n].id);
    nodes[n].slots.push_back({.index = 0, .device = DEVICE_CPU, .holder = {JobId("same"), 1, 1}});
    candidates.push_back(Of(absl::StrCat("v", n), "", 0, false));
    nodes[n].slots.push_back({.index = 1, .device = DEVICE_CPU, .holder = candidates.back().claim});
  }
  const auto used = [] {  // by this thread: other processes do not count
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return absl::DurationFromTimespec(time);
  };
  const auto shortest = [&](const auto& what) {
    absl::Duration best = absl::InfiniteDuration();
    for (int i = 0; i < 3; ++i) {
      const absl::Duration before = used();
      what();
      best = std::min(best, used() - before);
    }
    return best;
  };
  const absl::Duration cluster = shortest([&] { EXPECT_EQ(Cluster(nodes).FreeSlots({1, DEVICE_CPU}), 0u); });
  for (const Demand& demand : {selective, together}) {
    const absl::Duration time = shortest([&] {
      EXPECT_TRUE(ChooseVictims(nodes, {{JobId("w"), 1, 99}, "", demand, true}, candidates, {}).empty());
    });
    EXPECT_LT(time, 20 * cluster) << cluster;
  }
}

TEST(Preempt, ElasticJobsShrinkFirst) {
  EXPECT_EQ(Chosen("abbb", 1, {Costs("a", 1), Costs("b", 9, 1, false, 2)}), "b") << "b goes on with two";
  EXPECT_EQ(Chosen("abbb", 3, {Costs("a", 1), Costs("b", 9, 1, false, 2)}), "b") << "only b has enough";
  EXPECT_EQ(Chosen("abb", 1, {Costs("a", 1), Costs("b", 9, 1, false, 2)}), "a") << "b could not go on";
}

}  // namespace
}  // namespace muster::scheduler
