#include "strategies/choose_communication.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/inventory.h"
#include "strategies/compression.h"

namespace muster::strategies {
namespace {

// Four bytes of a link inside a node take as long as one of a port.
Hardware Layered() {
  return {.name = "layered",
          .fp32_flops = 1e12,
          .bf16_flops = 1e12,
          .memory_bytes_per_second = 1e12,
          .inside = {400e6, 1e-6, 1e-6},
          .between = {100e6, 1e-6, 1e-6}};
}

Train ToChoose(Hierarchy hierarchy) {
  Train train;
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_SHARD_GRAD_OP);
  train.mutable_strategy()->mutable_fsdp()->set_placement(PLACEMENT_EVEN);
  train.mutable_batch()->set_sequences(8);
  train.mutable_optimizer()->mutable_adamw();
  train.mutable_communication()->set_hierarchy(hierarchy);
  return train;
}

struct Answer {
  Hierarchy hierarchy;
  uint32_t ranks_on_node;
  bool operator==(const Answer&) const = default;
};

Answer ChosenOn(const std::vector<RankPlace>& ranks, const Hardware& hardware, Hierarchy asked = HIERARCHY_AUTO) {
  Train train = ToChoose(asked);
  const Inventory inventory = *models::MakeInventory(train.model());
  MemoryPlan plan = *PlanMemory(train, inventory, ranks);
  EXPECT_EQ(ChooseLevels(train, inventory, ranks, hardware, nullptr, plan), absl::OkStatus());
  return {train.communication().hierarchy(), plan.layout.table.ranks_on_node()};
}

// Four ranks on two nodes: a ring brings 3/4 of the bytes into a node, two levels half.
TEST(ChooseLevels, WhereTheStepIsFaster) {
  const std::vector<RankPlace> nodes = FullNodes(4, 2, 0);
  EXPECT_EQ(ChosenOn(nodes, Layered()), (Answer{HIERARCHY_ALWAYS, 2}));
  Hardware even = Layered();
  even.between = even.inside;
  even.inside.seconds = 0.01;  // of each collective inside a node, which two levels have more of
  EXPECT_EQ(ChosenOn(nodes, even), (Answer{HIERARCHY_NEVER, 0}));
  EXPECT_EQ(ChosenOn(nodes, even, HIERARCHY_ALWAYS), (Answer{HIERARCHY_ALWAYS, 2}));
  EXPECT_EQ(ChosenOn(nodes, Layered(), HIERARCHY_NEVER), (Answer{HIERARCHY_NEVER, 0}));
}

TEST(ChooseLevels, NeedEquallyManyNeighboringRanksOnSeveralNodes) {
  const auto on = [](const std::vector<uint32_t>& nodes) {
    std::vector<RankPlace> ranks;
    for (const uint32_t node : nodes) ranks.push_back({.node = node});
    return ranks;
  };
  for (const std::vector<uint32_t>& nodes :
       {std::vector<uint32_t>{0, 0, 0, 0}, {0, 1, 2, 3}, {0, 0, 0, 1}, {0, 1, 0, 1}, {0, 0, 1, 1, 0, 0}}) {
    EXPECT_EQ(ChosenOn(on(nodes), Layered()).ranks_on_node, 0u);
    EXPECT_EQ(ChosenOn(on(nodes), Layered(), HIERARCHY_ALWAYS).ranks_on_node, 0u);
  }
  EXPECT_EQ(ChosenOn(on({5, 5, 2, 2}), Layered()).ranks_on_node, 2u);
}

Compression CompressionOn(const std::vector<RankPlace>& ranks, const Hardware& hardware, bool ddp = true) {
  Train train = ToChoose(HIERARCHY_NEVER);
  if (ddp) train.mutable_strategy()->mutable_ddp();
  train.mutable_communication()->mutable_compression()->mutable_auto_();
  const Inventory inventory = *models::MakeInventory(train.model());
  MemoryPlan plan = *PlanMemory(train, inventory, ranks);
  std::string reason;
  EXPECT_EQ(ChooseCompression(train, inventory, ranks, hardware, nullptr, plan, reason), absl::OkStatus());
  EXPECT_TRUE(reason.starts_with("compression auto: " + NameOf(train.communication().compression()))) << reason;
  const bool two = plan.programs[0].schedule.two_exchanges;
  EXPECT_EQ(two, HasSecondExchange(train.communication().compression())) << "the plan is that of the choice";
  return train.communication().compression();
}

// A quarter of the bytes is faster where bytes count; not where a link is as fast as memory, nor where nothing is
// summed over replicas.
TEST(ChooseCompression, WhereTheStepIsMuchFaster) {
  const std::vector<RankPlace> nodes = FullNodes(4, 1, 0);
  EXPECT_TRUE(CompressionOn(nodes, Layered()).has_int8());
  Hardware fast = Layered();
  fast.between = fast.inside = {1e12, 1e-7, 1e-7};
  EXPECT_TRUE(CompressionOn(nodes, fast).has_none());
  EXPECT_TRUE(CompressionOn(nodes, Layered(), /*ddp=*/false).has_none());
  EXPECT_TRUE(CompressionOn(FullNodes(1, 1, 0), Layered()).has_none()) << "a rank alone";
}

// Its first stage sums nothing, and its second one does.
TEST(ChooseCompression, LooksBehindAFrozenStage) {
  Train train = ToChoose(HIERARCHY_NEVER);
  train.mutable_strategy()->mutable_ddp();
  train.mutable_parallel()->set_pipeline(2);
  train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_1F1B), train.mutable_pipeline()->add_cut("h.2");
  for (const char* frozen : {"wte*", "wpe*", "h.0.*", "h.1.*"}) train.add_freeze(frozen);
  train.mutable_communication()->mutable_compression()->mutable_auto_();
  const Inventory inventory = *models::MakeInventory(train);
  const std::vector<RankPlace> nodes = FullNodes(4, 1, 0);
  MemoryPlan plan = *PlanMemory(train, inventory, nodes);
  ASSERT_FALSE(SumsOverReplicas(plan.programs[0].schedule));
  EXPECT_TRUE(SumsOverReplicas(plan));
  std::string reason;
  EXPECT_EQ(ChooseCompression(train, inventory, nodes, Layered(), nullptr, plan, reason), absl::OkStatus());
  EXPECT_NE(reason.find("because a step takes"), std::string::npos) << reason;
}

}  // namespace
}  // namespace muster::strategies
