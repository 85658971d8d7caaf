#include "strategies/local_steps.h"

#include <gtest/gtest.h>

#include <cmath>

#include "models/inventory.h"
#include "strategies/fit.h"

namespace muster::strategies {
namespace {

Train LocalTiny() {
  Train train;
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);  // 842,496 parameters
  train.mutable_batch()->set_sequences(8);
  train.mutable_optimizer()->mutable_adamw();
  Sync& sync = *train.mutable_sync();
  sync.set_replicas(2), sync.set_every(50), sync.set_fragments(1), sync.set_values(EXCHANGED_VALUES_FP32);
  return train;
}

// A byte takes 1 us between nodes, 0.1 us inside, and none of memory's time.
Hardware Slow() {
  return {.name = "slow",
          .fp32_flops = 1e12,
          .bf16_flops = 1e12,
          .memory_bytes_per_second = 1e18,
          .host_bytes_per_second = 1e6,
          .host_memory_bytes_per_second = 1e18,
          .inside = {1e7, 0, 0},
          .between = {1e6, 0, 0}};
}

ReplicaExchange Of(const Train& train, const std::vector<RankPlace>& ranks, const Hardware& hardware, double step = 1,
                   Device device = DEVICE_CPU) {
  const Inventory inventory = *models::MakeInventory(train.model());
  const MemoryPlan plan = *PlanMemory(train, inventory, ranks);
  return PredictExchange(train, inventory, plan.layout, device, ranks, hardware, step);
}

constexpr double kElements = 842'496;

TEST(PredictExchange, TakesTheBytesOverTheLink) {
  Train train = LocalTiny();
  train.mutable_strategy()->mutable_single();
  const std::vector<RankPlace> one = FullNodes(1, 1, 0);
  ReplicaExchange exchange = Of(train, one, Slow());
  EXPECT_EQ(exchange.sent_bytes, 4 * kElements);
  EXPECT_EQ(exchange.kept_bytes, 8 * kElements);
  EXPECT_NEAR(exchange.seconds, 3.37, 0.001);
  EXPECT_NEAR(exchange.step_seconds, 3.37 / 50, 0.0001);

  train.mutable_sync()->set_replicas(4);  // from each of three others
  EXPECT_NEAR(Of(train, one, Slow()).seconds, 3 * 3.37, 0.001);

  // Of 8-bit values each 256 have a scale of four bytes, of 4-bit values each 32.
  train = LocalTiny();
  train.mutable_strategy()->mutable_single();
  train.mutable_sync()->set_values(EXCHANGED_VALUES_BF16);
  EXPECT_EQ(Of(train, one, Slow()).sent_bytes, 2 * kElements);
  train.mutable_sync()->set_values(EXCHANGED_VALUES_INT8);
  EXPECT_EQ(Of(train, one, Slow()).sent_bytes, kElements * 260 / 256);
  train.mutable_sync()->set_values(EXCHANGED_VALUES_INT4);
  EXPECT_EQ(Of(train, one, Slow()).sent_bytes, kElements * 20 / 32);
}

TEST(PredictExchange, RanksOfOneShareFetchFromTheFirst) {
  Train train = LocalTiny();
  train.mutable_strategy()->mutable_ddp();
  // The first of two has the link of both, and the second one fetches inside the node.
  EXPECT_NEAR(Of(train, FullNodes(2, 2, 0), Slow()).seconds, 3.37 / 2 + 0.337, 0.001);
  // Or over the link.
  EXPECT_NEAR(Of(train, FullNodes(2, 1, 0), Slow()).seconds, 3.37 + 3.37, 0.001);
  // Each of two shards fetches its half over its half of the link.
  train.mutable_strategy()->mutable_fsdp()->set_placement(PLACEMENT_EVEN);
  const ReplicaExchange sharded = Of(train, FullNodes(2, 2, 0), Slow());
  EXPECT_NEAR(sharded.sent_bytes, 2 * kElements, 200);
  EXPECT_NEAR(sharded.seconds, 3.37 / 2, 0.001);
}

TEST(PredictExchange, FragmentsAndDelayLetStepsGoOn) {
  Train train = LocalTiny();
  train.mutable_strategy()->mutable_single();
  const std::vector<RankPlace> one = FullNodes(1, 1, 0);
  train.mutable_sync()->set_fragments(5);
  EXPECT_NEAR(Of(train, one, Slow()).seconds, 3.37 / 5, 0.001);
  EXPECT_NEAR(Of(train, one, Slow()).step_seconds, 3.37 / 50, 0.0001);
  train.mutable_sync()->set_delay(2);
  EXPECT_NEAR(Of(train, one, Slow(), 0.25).step_seconds, 5 * (3.37 / 5 - 0.5) / 50, 0.0001);
  EXPECT_NEAR(Of(train, one, Slow(), 0.5).step_seconds, 0, 0.0001);
}

// TCP sends ten segments of 1,448 bytes in the first round trip, and twice as many in each that follows: 3.37 MB take
// eight. A link of 500 kB in a round trip is full after six.
TEST(PredictExchange, WindowsGrow) {
  Train train = LocalTiny();
  train.mutable_strategy()->mutable_single();
  Hardware far = Slow();
  far.between = {1e12, 0.02, 0.02};
  EXPECT_NEAR(Of(train, FullNodes(1, 1, 0), far).seconds, 0.04 * (1 + 8), 0.001);
  far.between.bytes_per_second = 500e3 / 0.04;
  EXPECT_NEAR(Of(train, FullNodes(1, 1, 0), far).seconds, 0.04 * (1 + 6) + 3.37 / 12.5, 0.001);
}

// AdamW's two moments and the weights come to the host twice, and the weights go back.
TEST(PredictExchange, OfAGpuGoesThroughTheHost) {
  Train train = LocalTiny();
  train.mutable_strategy()->mutable_single();
  Hardware far = Slow();
  far.between.bytes_per_second = 1e18;
  EXPECT_NEAR(Of(train, FullNodes(1, 1, 0), far, 1, DEVICE_CUDA).seconds, kElements * (2 * 12 + 4) / 1e6, 0.01);
}

// Two replicas of two ranks in int8, `bench/networks.py --modes flat,diloco --every 5`, medians of an exchange on an
// AMD EPYC with AVX-512 BF16, 2026-11-29. Beside it replicas wait for each other, which the model leaves out.
TEST(PredictExchange, IsNearTheMeasuredOneOverALinkWithLatency) {
  Train train = LocalTiny();
  train.mutable_strategy()->mutable_ddp();
  train.mutable_sync()->set_values(EXCHANGED_VALUES_INT8);
  Hardware two_cores = *FindHardware("cpu");
  for (const auto& [mbit, measured] : {std::pair{100, 0.361}, {1000, 0.352}}) {
    two_cores.between = {mbit * 1e6 / 8 / 2, 0.02, 0.02};  // of a rank's half
    EXPECT_NEAR(Of(train, FullNodes(2, 2, 0), two_cores).seconds / measured, 1, 0.2) << mbit;
  }
}

}  // namespace
}  // namespace muster::strategies
