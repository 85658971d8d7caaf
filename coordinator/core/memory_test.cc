// Placement by slot memory, and what is stored about it.
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/match.h"
#include "coordinator/core/core.h"
#include "coordinator/core/world_test.h"
#include "strategies/partition/table.h"

namespace muster::core {
namespace {

Node Sized(const std::string& id, int slots, uint64_t gib) {
  Node node = Hello(id, slots);
  for (Slot& slot : *node.mutable_slots()) slot.set_memory_bytes(gib * kGiB);
  return node;
}

// A model that needs 15 GiB for weights, gradients and AdamW on one rank.
JobSpec Large(const std::string& name, uint32_t ranks) {
  JobSpec spec = Spec(name);
  spec.mutable_resources()->set_ranks(ranks);
  spec.mutable_train()->mutable_model()->mutable_gpt2()->Clear();
  spec.mutable_train()->mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_LARGE);
  spec.mutable_train()->mutable_batch()->set_sequences(ranks);
  spec.mutable_train()->mutable_batch()->set_microbatch(1);
  spec.mutable_train()->clear_strategy();
  EXPECT_TRUE(spec::Resolve({}, spec).empty());
  return spec;
}

TEST(Memory, AJobWaitsForSlotsThatHoldItAndSaysWhatWouldFit) {
  World w;
  w.Do(NodeConnected{Sized("a", 2, 8)});
  const JobId id = w.Submit(Large("large", 2));
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  const std::string reason = w.Get(id).reason();
  EXPECT_TRUE(absl::StrContains(reason, "needs 2 slots of at least ")) << reason;
  EXPECT_TRUE(absl::StrContains(reason, "the largest has 8 GiB")) << reason;
  EXPECT_TRUE(absl::StrContains(reason, "it would fit with ")) << reason;
  // It does not delay others, and starts where there is room.
  const JobId small = w.Submit(Spec("small"));
  EXPECT_EQ(w.State(small), JOB_STATE_STARTING);
  w.Do(NodeConnected{Sized("b", 3, 40)});
  ASSERT_EQ(w.State(id), JOB_STATE_STARTING);
  const Generation generation = w.Newest(id);
  for (const RankPlacement& rank : generation.ranks()) {
    EXPECT_EQ(rank.node(), "b");
    EXPECT_EQ(rank.memory_bytes(), 40 * kGiB);
  }
}

TEST(Memory, ItIsHeadOnlyOfSlotsThatHoldIt) {
  World w;
  w.Do(NodeConnected{Sized("a", 2, 8)});
  w.Do(NodeConnected{Sized("b", 2, 40)});
  const JobId first = w.Submit(Large("first", 2)), second = w.Submit(Large("second", 2));
  EXPECT_EQ(w.State(first), JOB_STATE_STARTING);
  EXPECT_EQ(w.State(second), JOB_STATE_QUEUED);
  EXPECT_TRUE(absl::StrContains(w.Get(second).reason(), "0 of 2 free (in use: first-")) << w.Get(second).reason();
  EXPECT_EQ(w.State(w.Submit(Spec("small"))), JOB_STATE_STARTING);
  EXPECT_EQ(w.State(w.Submit(Spec("small"))), JOB_STATE_STARTING);
}

TEST(Memory, ParallelAutoIsResolvedWhereItIsPlacedAndStored) {
  World w;
  JobSpec spec = Large("auto", 2);
  spec.mutable_train()->mutable_strategy()->mutable_auto_();
  spec.mutable_train()->mutable_parallel()->set_auto_(true);
  spec.mutable_train()->mutable_batch()->set_sequences(8);
  spec.mutable_train()->mutable_batch()->clear_microbatch();
  w.Do(NodeConnected{Sized("a", 2, 12)});
  const JobId id = w.Submit(spec);
  ASSERT_EQ(w.State(id), JOB_STATE_STARTING) << w.Get(id).reason();
  const Generation generation = w.Newest(id);
  ASSERT_TRUE(generation.has_chosen());
  EXPECT_FALSE(generation.chosen().has_model()) << "only what was chosen";
  const Train train = w.core->DesiredFor(NodeId("a")).ranks(1).run().spec().train();
  EXPECT_FALSE(train.parallel().auto_());
  EXPECT_GE(train.parallel().pipeline(), 1u);
  EXPECT_EQ(train.parallel().pipeline(), generation.chosen().parallel().pipeline());
  EXPECT_GT(train.batch().microbatch(), 0u);
  EXPECT_EQ(train.batch().sequences(), 8u);
  EXPECT_FALSE(train.strategy().has_auto_());
  EXPECT_TRUE(w.Get(id).spec().train().parallel().auto_()) << "the next generation may choose another";
}

// Of which stages and tensor ranks are chosen, too.
JobSpec LargeMix(const std::string& name, uint32_t ranks) {
  JobSpec spec = Large(name, ranks);
  spec.mutable_train()->clear_strategy();
  spec.mutable_train()->mutable_strategy()->mutable_auto_();
  spec.mutable_train()->mutable_batch()->clear_microbatch();
  EXPECT_TRUE(spec::Resolve({}, spec).empty());
  EXPECT_TRUE(spec.train().parallel().auto_());
  return spec;
}

// Two slots of 1 GiB are free, and refused. It does not demand what the best mix that was planned for them needs, but
// larger slots.
TEST(Memory, AMixThatDoesNotFitLooksAtLargerSlots) {
  World w;
  w.Do(NodeConnected{Sized("a", 2, 1)});
  const JobId id = w.Submit(LargeMix("auto", 2));
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  const std::string reason = w.Get(id).reason();
  EXPECT_TRUE(absl::StrContains(reason, "can never start on these nodes: needs 2 slots of ")) << reason;
  EXPECT_TRUE(absl::StrContains(reason,
                                " for the smallest configuration that was tried, the nodes have none, the largest has "
                                "1 GiB; it would fit with "))
      << reason;
  for (const char* other : {"1.02 GiB", "rank 0 needs"}) EXPECT_FALSE(absl::StrContains(reason, other)) << reason;
  w.clock.Advance(absl::Minutes(1));
  const Outcome out = w.Do(Tick{});
  ASSERT_EQ(out.events.size(), 1u);
  EXPECT_EQ(out.events[0].kind(), "job.waiting");
  const std::string numbers = reason.substr(reason.find("needs 2 slots"));
  EXPECT_TRUE(absl::StrContains(out.events[0].message(), numbers)) << out.events[0].message();
  w.Do(NodeConnected{Sized("b", 3, 2)});
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED) << w.Get(id).reason();
  w.Do(NodeConnected{Sized("c", 4, 80)});
  ASSERT_EQ(w.State(id), JOB_STATE_STARTING) << w.Get(id).reason();
  const Generation generation = w.Newest(id);
  for (const RankPlacement& rank : generation.ranks()) EXPECT_EQ(rank.node(), "c");
}

// Though two slots of 1 GiB are free: it waits for larger ones, and has them evicted.
TEST(Memory, AMixPreemptsTheLargerSlotsThatItWaitsFor) {
  WorldOptions options;
  options.preempt_lower_priority = true;
  World w(options);
  w.Do(NodeConnected{Sized("c", 2, 80)});
  JobSpec low = Large("low", 2);
  low.set_priority(-1);
  low.set_preemptible(true);
  const JobId victim = w.Submit(low);
  w.RunAll(victim);
  w.TickAfter(absl::Hours(1));
  w.Do(NodeConnected{Sized("a", 2, 1)});
  const JobId id = w.Submit(LargeMix("auto", 2));
  EXPECT_EQ(w.State(victim), JOB_STATE_STOPPING) << w.Get(id).reason();
  w.Checkpoint(victim, 10);
  w.EndAll(victim);
  ASSERT_EQ(w.State(id), JOB_STATE_STARTING) << w.Get(id).reason();
  EXPECT_EQ(w.Newest(id).ranks(0).node(), "c");
}

// Whatever was chosen for four ranks, the next generation is planned anew for the two that are left.
TEST(Memory, StrategyAutoIsChosenAgainForFewerRanks) {
  World w;
  JobSpec spec = Spec("auto");
  spec.mutable_resources()->set_ranks(4);
  spec.mutable_resources()->set_min_ranks(1);
  Train& train = *spec.mutable_train();
  train.clear_strategy();
  train.mutable_strategy()->mutable_auto_();
  train.mutable_batch()->clear_microbatch();
  train.mutable_batch()->set_sequences(16);
  ASSERT_TRUE(spec::Resolve({}, spec).empty());
  w.Do(NodeConnected{Sized("a", 2, 8)});
  w.Do(NodeConnected{Sized("b", 2, 8)});
  const JobId id = w.Submit(spec);
  const auto mesh_divides = [&](uint32_t ranks) {
    ASSERT_EQ(static_cast<uint32_t>(w.Newest(id).ranks_size()), ranks) << w.Get(id).reason();
    const Train run = w.core->DesiredFor(NodeId("a")).ranks(0).run().spec().train();
    EXPECT_FALSE(run.parallel().auto_());
    EXPECT_FALSE(run.strategy().has_auto_());
    EXPECT_GT(run.batch().microbatch(), 0u);
    const uint32_t of_one_copy = run.parallel().pipeline() * run.parallel().tensor();
    ASSERT_GT(of_one_copy, 0u);
    EXPECT_EQ(ranks % of_one_copy, 0u);
  };
  mesh_divides(4);
  w.RunAll(id);
  w.Do(NodeDisconnected{NodeId("b"), Incarnation("i1")});
  w.TickAfter(absl::Seconds(10));
  w.EndAll(id);
  w.TickAfter(absl::Seconds(1));
  ASSERT_EQ(w.Newest(id).number(), 2u) << w.Get(id).reason();
  mesh_divides(2);
}

TEST(Memory, AutoIsResolvedWhereItIsPlacedAndStored) {
  World w;
  JobSpec spec = Large("auto", 2);
  spec.mutable_train()->mutable_strategy()->mutable_auto_();
  w.Do(NodeConnected{Sized("a", 2, 12)});
  const JobId id = w.Submit(spec);
  ASSERT_EQ(w.State(id), JOB_STATE_STARTING) << w.Get(id).reason();
  const Generation generation = w.Newest(id);
  ASSERT_TRUE(generation.has_strategy());
  EXPECT_FALSE(generation.strategy().has_auto_());
  EXPECT_NE(generation.strategy_reason(), "");
  EXPECT_TRUE(w.Get(id).spec().train().strategy().has_auto_()) << "the next generation may choose another";
  const Assignment before = w.core->DesiredFor(NodeId("a")).ranks(1).run();
  EXPECT_EQ(before.spec().train().strategy().SerializeAsString(), generation.strategy().SerializeAsString());
  EXPECT_EQ(before.spec().train().activation_checkpointing(), generation.activation_checkpointing());
  ASSERT_NE(w.core->PlanOf(id), nullptr);
  const PartitionTable table = w.core->PlanOf(id)->table;
  EXPECT_EQ(before.table_sha256(), partition::TableSha256(table));
  // After a restart the same table is made again, from the stored memory of the slots.
  w.Restart();
  const Assignment after = w.core->DesiredFor(NodeId("a")).ranks(1).run();
  EXPECT_EQ(after.SerializeAsString(), before.SerializeAsString());
  ASSERT_NE(w.core->PlanOf(id), nullptr);
  EXPECT_EQ(w.core->PlanOf(id)->table.SerializeAsString(), table.SerializeAsString());
}

Outcome ReportSpeed(World& w, const JobId& id, uint32_t rank, double flops_per_second) {
  RankRecord running{{id, w.Newest(id).number(), rank}, {}};
  running.record.mutable_running()->set_flops_per_second(flops_per_second);
  return w.Do(running);
}

TEST(Speed, IsStoredPerSlotAndSetsTheSharesOfTheNextGeneration) {
  World w;
  JobSpec spec = Large("uneven", 2);
  Fsdp& fsdp = *spec.mutable_train()->mutable_strategy()->mutable_fsdp();
  fsdp.set_placement(PLACEMENT_RAGGED);
  fsdp.set_shares(SHARES_SPEED);
  ASSERT_TRUE(spec::Resolve({}, spec).empty());
  w.Do(NodeConnected{Sized("a", 2, 80)});
  const JobId id = w.Submit(spec);
  ASSERT_EQ(w.State(id), JOB_STATE_STARTING) << w.Get(id).reason();
  const std::string equal = w.Newest(id).table_sha256();
  ReportSpeed(w, id, 0, 3e9);
  ReportSpeed(w, id, 1, 1e9);
  EXPECT_TRUE(ReportSpeed(w, id, 1, 1e9).rows.empty()) << "nothing new";
  for (const double nonsense : {0.0, -1.0, std::numeric_limits<double>::infinity()}) ReportSpeed(w, id, 1, nonsense);
  // It survives a restart, and a reconnect of the worker whatever speed that reports.
  w.Restart();
  Node again = Sized("a", 2, 80);
  again.set_incarnation("i2");
  again.mutable_slots(0)->set_flops_per_second(77);
  w.Do(NodeConnected{again});
  EXPECT_EQ(w.core->GetNode(NodeId("a"))->slots(0).flops_per_second(), 3e9);
  EXPECT_EQ(w.core->GetNode(NodeId("a"))->slots(1).flops_per_second(), 1e9);
  EXPECT_EQ(w.Newest(id).table_sha256(), equal) << "a generation keeps its table";
  ASSERT_NE(w.core->PlanOf(id), nullptr);
  EXPECT_EQ(w.core->PlanOf(id)->table_sha256, equal) << "also after a restart";

  w.Report(id, RANK_STATE_EXITED, RankExit::FAILED);
  w.Report(id, RANK_STATE_EXITED, RankExit::STOPPED, false, 1);
  w.ReportNothing("a", "i2");
  w.PassBackoff();
  ASSERT_EQ(w.Newest(id).number(), 2u);
  EXPECT_EQ(w.Newest(id).ranks(0).flops_per_second(), 3e9);
  EXPECT_NE(w.Newest(id).table_sha256(), equal);
  const UnitPartition& block = w.core->PlanOf(id)->table.units(1);
  EXPECT_NEAR(static_cast<double>(block.boundaries(1)) / static_cast<double>(block.boundaries(2)), 0.75, 0.02);

  // A new device on that slot has no measured speed.
  again.set_incarnation("i3");
  again.mutable_slots(0)->set_model("NVIDIA H200");
  w.Do(NodeConnected{again});
  EXPECT_EQ(w.core->GetNode(NodeId("a"))->slots(0).flops_per_second(), 0);
  EXPECT_EQ(w.core->GetNode(NodeId("a"))->slots(1).flops_per_second(), 1e9);
}

TEST(Memory, WouldPlaceLooksForSlotsThatHoldIt) {
  World w;
  const JobSpec large = Large("large", 2);
  EXPECT_TRUE(w.core->WouldPlace(large).slots.ranks.empty());
  w.Do(NodeConnected{Sized("a", 4, 8)});
  Core::Placing placing = w.core->WouldPlace(large);
  EXPECT_EQ(placing.slots.ranks.size(), 2u) << "they show what does not fit";
  placing = w.core->WouldPlace(large, 16 * kGiB);
  EXPECT_TRUE(placing.nodes.empty());
  EXPECT_TRUE(placing.slots.ranks.empty());
  EXPECT_TRUE(absl::StrContains(placing.reason, "needs 2 slots of at least 16 GiB")) << placing.reason;
  w.Do(NodeConnected{Sized("b", 2, 40)});
  placing = w.core->WouldPlace(large, 16 * kGiB);
  EXPECT_EQ(placing.nodes, (std::vector<NodeId>{NodeId("b"), NodeId("b")}));
  w.Submit(large);
  placing = w.core->WouldPlace(large, 16 * kGiB);
  EXPECT_TRUE(placing.nodes.empty());
  ASSERT_EQ(placing.slots.ranks.size(), 2u);
  EXPECT_EQ(placing.slots.ranks[0].memory_bytes, 40 * kGiB) << "when nothing else runs";
}

}  // namespace
}  // namespace muster::core
