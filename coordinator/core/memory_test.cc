// Jobs and the memory of slots: who waits for what, and what is stored.
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "coordinator/core/core.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

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
  // It delays nobody, and starts where there is room.
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
  EXPECT_GT(before.table().shards(), 0u);
  // After a restart the same table is made again, from what was known of the slots then.
  w.Restart();
  const Assignment after = w.core->DesiredFor(NodeId("a")).ranks(1).run();
  EXPECT_EQ(after.SerializeAsString(), before.SerializeAsString());
}

TEST(Memory, WouldPlaceLooksForSlotsThatHoldIt) {
  World w;
  const JobSpec large = Large("large", 2);
  EXPECT_TRUE(w.core->WouldPlace(large).slots.ranks.empty());
  w.Do(NodeConnected{Sized("a", 4, 8)});
  Core::Placing placing = w.core->WouldPlace(large);
  EXPECT_TRUE(placing.nodes.empty());
  EXPECT_EQ(placing.slots.ranks.size(), 2u) << "they show what does not fit";
  EXPECT_TRUE(absl::StrContains(placing.reason, "its slot has 8 GiB")) << placing.reason;
  w.Do(NodeConnected{Sized("b", 2, 40)});
  placing = w.core->WouldPlace(large);
  EXPECT_EQ(placing.nodes, (std::vector<NodeId>{NodeId("b"), NodeId("b")}));
  w.Submit(large);
  placing = w.core->WouldPlace(large);
  EXPECT_TRUE(placing.nodes.empty());
  ASSERT_EQ(placing.slots.ranks.size(), 2u);
  EXPECT_EQ(placing.slots.ranks[0].memory_bytes, 40 * kGiB) << "when nothing else runs";
}

}  // namespace
}  // namespace muster::core
