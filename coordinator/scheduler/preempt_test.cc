// Tables: which running jobs a waiting job may preempt.
#include "coordinator/scheduler/preempt.h"

#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

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
}

TEST(Preempt, ElasticJobsShrinkFirst) {
  EXPECT_EQ(Chosen("abbb", 1, {Costs("a", 1), Costs("b", 9, 1, false, 2)}), "b") << "b goes on with two";
  EXPECT_EQ(Chosen("abbb", 3, {Costs("a", 1), Costs("b", 9, 1, false, 2)}), "b") << "only b has enough";
  EXPECT_EQ(Chosen("abb", 1, {Costs("a", 1), Costs("b", 9, 1, false, 2)}), "a") << "b could not go on";
}

}  // namespace
}  // namespace muster::scheduler
