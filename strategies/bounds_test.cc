#include "strategies/bounds.h"

#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"
#include "strategies/choose.h"
#include "strategies/choose_mesh.h"
#include "strategies/compression.h"

namespace muster::strategies {
namespace {

// 3 x 2 units of a small model and the whole of it, for hand.
TEST(Bounds, OfOneRankAreItsFlopsAndBytes) {
  Train train;
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  train.mutable_strategy()->mutable_single();
  train.mutable_batch()->set_sequences(8);
  train.mutable_batch()->set_microbatch(2);
  train.mutable_optimizer()->mutable_adamw();
  const Inventory inventory = *models::MakeInventory(train.model());
  const Hardware hardware{.fp32_flops = 1e9, .memory_bytes_per_second = 1e12};
  const std::vector<RankPlace> ranks = FullNodes(1, 1, 0);
  const Least least =
      Bounds(inventory, ranks, hardware).Of(train, pipeline::StageOfUnit(static_cast<size_t>(inventory.units_size())));
  double flops = 0, activations = 0, saved = 0;
  for (const Unit& unit : inventory.units()) {
    flops += unit.forward_flops();
    activations += static_cast<double>(unit.saved_bytes() + unit.output_bytes());
    saved += static_cast<double>(unit.saved_bytes());
  }
  const double bytes = 4.0 * static_cast<double>(models::Parameters(inventory));
  // Three passes of each of four microbatches read the parameters; AdamW reads and writes four arrays.
  EXPECT_NEAR(least.seconds, 8 * 3 * (flops * 1e-9 + activations * 1e-12) + (4 * 3 + 8) * bytes * 1e-12, 1e-9);
  EXPECT_EQ(least.parameters + least.gradients + least.optimizer_state, static_cast<uint64_t>(4 * bytes));
  EXPECT_EQ(least.activations, static_cast<uint64_t>(2 * saved) - 2 * inventory.units(0).saved_bytes());
}

// One microbatch through four stages: each boundary between them is passed once forward and once back, at 1 GB/s and
// with 1 ms of latency between nodes. Nothing else takes time.
TEST(Bounds, HaveTheWayFromStageToStage) {
  Train train;
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  train.mutable_strategy()->mutable_single();
  train.mutable_batch()->set_sequences(2), train.mutable_batch()->set_microbatch(2);
  train.mutable_optimizer()->mutable_sgd();
  train.mutable_parallel()->set_pipeline(4);
  train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_1F1B);
  const Inventory inventory = *models::MakeInventory(train.model());
  Hardware hardware{.fp32_flops = 1e30, .memory_bytes_per_second = 1e30};
  hardware.inside = {1e30, 0}, hardware.between = {1e9, 1e-3};
  const double bytes = 2.0 * 128 * 128 * 4;  // sequences, context, width
  const auto seconds = [&](const std::vector<RankPlace>& ranks) {
    return Bounds(inventory, ranks, hardware).Of(train, *pipeline::StagesOf(train, inventory)).seconds;
  };
  EXPECT_NEAR(seconds(FullNodes(4, 1, 0)), 3 * 2 * (bytes * 1e-9 + 1e-3), 1e-9);
  EXPECT_NEAR(seconds(FullNodes(4, 2, 0)), 1 * 2 * (bytes * 1e-9 + 1e-3), 1e-9);
  EXPECT_NEAR(seconds(FullNodes(4, 4, 0)), 0, 1e-9);
  // With two chunks a stage there are three boundaries between two stages.
  train.mutable_parallel()->set_pipeline(2);
  train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_INTERLEAVED), train.mutable_pipeline()->set_chunks(2);
  EXPECT_NEAR(seconds(FullNodes(2, 1, 0)), 3 * 2 * (bytes * 1e-9 + 1e-3), 1e-9);
}

// Never above what plan and simulator find, and near it: for random jobs, every shape and every strategy.
TEST(Bounds, AreBelowThePlanAndNearIt) {
  std::mt19937 random(11);
  const Hardware h100 = *FindHardware("h100"), cpu = *FindHardware("cpu");
  double time_ratios = 0, byte_ratios = 0, few_ratios = 0;
  int count = 0, few = 0;
  for (int i = 0; i < 400; ++i) {
    const bool gpu = random() % 3 > 0;
    Train train;
    Gpt2& model = *train.mutable_model()->mutable_gpt2();
    model.set_size(random() % 2 == 0 ? GPT2_SIZE_SMALL : GPT2_SIZE_TINY);
    model.set_layers(4 + random() % 20);
    *train.mutable_model() = *models::Resolve(train.model());
    const uint32_t stages = 1u << random() % 3, each = 1u << random() % 4;
    train.mutable_batch()->set_sequences(each * (1 + random() % 24));
    train.mutable_optimizer()->mutable_adamw();
    if (random() % 2 == 0) train.mutable_precision()->set_compute(DTYPE_BF16);
    train.mutable_parallel()->set_pipeline(stages);
    const PipelineShape shape = PipelineShapes()[random() % PipelineShapes().size()];
    const uint32_t tensor = 1u << random() % 3;
    train.mutable_parallel()->set_tensor(tensor);
    train.mutable_parallel()->set_sequence_parallel(tensor > 1 && random() % 2 == 0);
    const uint32_t context = random() % 3 == 0 ? 2u << random() % 2 : 1;
    train.mutable_parallel()->set_context(context);
    const Inventory inventory = *models::MakeInventory(train, gpu ? DEVICE_CUDA : DEVICE_CPU);
    if (stages > 1) {
      if (stages * shape.chunks > static_cast<uint32_t>(inventory.units_size())) continue;
      train.mutable_pipeline()->set_schedule(shape.schedule);
      if (shape.chunks > 1) train.mutable_pipeline()->set_chunks(shape.chunks);
    }
    const std::vector<RankPlace> ranks = FullNodes(stages * each * context * tensor, 1 + random() % 8, 0);
    const std::vector<Strategy> strategies = DataStrategies(train, ranks);
    train = With(train, strategies[random() % strategies.size()], random() % 2 == 0);
    const auto share = static_cast<uint32_t>(ShareOf(train.batch().sequences(), each, 0u).sequences);
    train.mutable_batch()->set_microbatch(1 + random() % std::min(share, 4u));
    const Inventory largest = models::ShareOf(inventory, 0);
    const Least least = Bounds(largest, ranks, gpu ? h100 : cpu).Of(train, *pipeline::StagesOf(train, inventory));
    const auto planned = PlanMemory(train, inventory, ranks);
    ASSERT_TRUE(planned.ok()) << planned.status() << train.DebugString();
    const MemoryPlan& plan = *planned;
    const double seconds =
        PredictStep(train, inventory, plan.layout, plan.programs, ranks, gpu ? h100 : cpu)[0].timeline.seconds;
    const std::string name = absl::StrCat(MixName(train), ", context ", context, " on ", ranks.size(), " ranks, ",
                                          train.batch().sequences(), " sequences");
    // An outline's time is that of the whole step within 1%.
    EXPECT_LE(least.seconds, 1.01 * seconds) << name;
    EXPECT_LE(least.bytes(), plan.peak()) << name;
    time_ratios += least.seconds / seconds;
    byte_ratios += static_cast<double>(least.bytes()) / static_cast<double>(plan.peak() - plan.by_shard[0].fixed);
    ++count;
    if (stages == 1 || Microbatches(train.batch(), each) > stages) continue;
    few_ratios += least.seconds / seconds, ++few;
  }
  std::printf("bounds over plans: time %.3f, of pipelines with few microbatches %.3f; bytes %.3f\n",
              time_ratios / count, few_ratios / few, byte_ratios / count);
  EXPECT_GT(time_ratios / count, 0.8);
  EXPECT_GT(few_ratios / few, 0.7);
  EXPECT_GT(byte_ratios / count, 0.6);
}

// Sums over replicas that travel compressed between nodes take less time than the exact ones.
TEST(Bounds, AreBelowThePlanOfCompressedSums) {
  Train train;
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_SMALL);
  train.mutable_batch()->set_sequences(32), train.mutable_batch()->set_microbatch(2);
  train.mutable_optimizer()->mutable_adamw();
  train.mutable_precision()->set_compute(DTYPE_BF16);
  Compression& compression = *train.mutable_communication()->mutable_compression();
  Strategy ddp;
  ddp.mutable_ddp();
  int slower = 0;
  for (const char* hardware : {"rtx4090", "cpu"}) {
    Hardware slow = *FindHardware(hardware);
    slow.between.bytes_per_second = 1e8;
    const Inventory inventory = *models::MakeInventory(train.model(), slow.device);
    for (const uint32_t on_node : {1u, 4u}) {
      const std::vector<RankPlace> ranks = FullNodes(8, on_node, 0);
      for (const Strategy& strategy : {ddp, FsdpOf(RESHARD_HYBRID)}) {
        for (const Hierarchy hierarchy : {HIERARCHY_NEVER, HIERARCHY_ALWAYS}) {
          train.mutable_communication()->set_hierarchy(hierarchy);
          double exact = 0;
          for (const Compression::KindCase kind :
               {Compression::kNone, Compression::kInt8, Compression::kTopK, Compression::kPowerSgd}) {
            compression.Clear();
            if (kind == Compression::kInt8) compression.mutable_int8();
            if (kind == Compression::kTopK) compression.mutable_top_k();
            if (kind == Compression::kPowerSgd) compression.mutable_power_sgd();
            FillDefaults(train.optimizer(), compression);
            const Train with = With(train, strategy, false);
            const auto plan = PlanMemory(with, inventory, ranks);
            ASSERT_TRUE(plan.ok()) << plan.status();
            const Least least = Bounds(inventory, ranks, slow).Of(with, *pipeline::StagesOf(with, inventory));
            const double seconds =
                PredictStep(with, inventory, plan->layout, plan->programs, ranks, slow)[0].timeline.seconds;
            EXPECT_LE(least.seconds, seconds) << NameOf(with) << ", " << NameOf(compression) << " on " << hardware;
            EXPECT_LE(least.bytes(), plan->peak()) << NameOf(with) << ", " << NameOf(compression);
            if (kind == Compression::kNone) exact = least.seconds;
            slower += seconds < exact ? 1 : 0;
          }
        }
      }
    }
  }
  EXPECT_GT(slower, 8) << "the exact sums alone would take longer";
}

}  // namespace
}  // namespace muster::strategies
