// Layouts of models whose units several ranks compute together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/box.h"
#include "models/inventory.h"
#include "strategies/compile.h"
#include "strategies/cost.h"
#include "strategies/hardware.h"
#include "strategies/partition/explain.h"
#include "strategies/partition/table.h"
#include "strategies/schedule/check.h"

namespace muster::strategies {
namespace {

using ::testing::HasSubstr;

// GPT-2 tiny: 4 layers of width 128, 4 heads, vocabulary 256, context 128.
Train Tiny(uint32_t pipeline, uint32_t tensor) {
  Train train;
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  *train.mutable_model() = *models::Resolve(train.model());
  train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_FULL_SHARD);
  train.mutable_parallel()->set_pipeline(pipeline);
  train.mutable_parallel()->set_tensor(tensor);
  train.mutable_batch()->set_sequences(8);
  train.mutable_batch()->set_microbatch(1);
  train.mutable_optimizer()->mutable_adamw();
  train.mutable_precision()->set_compute(DTYPE_FP32);
  train.mutable_precision()->set_reduce(DTYPE_FP32);
  return train;
}

// rank = ((p R + r) S + s) T + t with P = S = T = 2 and R = 1.
TEST(TensorRanks, HaveNeighboringNumbersAndAnOwnerEach) {
  const Train train = Tiny(2, 2);
  const Inventory inventory = *models::MakeInventory(train);
  const auto layout = MakeLayout(train, inventory, AnyPlaces(8));
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->mesh, (Mesh{.pipeline = 2, .replica = 1, .shard = 2, .tensor = 2}));
  for (uint32_t rank = 0; rank < 8; ++rank) {
    const RankRole& role = layout->roles[rank];
    EXPECT_EQ(role.stage(), rank / 4) << rank;
    EXPECT_EQ(role.tensor(), rank % 2) << rank;
    EXPECT_EQ(role.shard(), rank) << "each rank owns a part of its own";
    EXPECT_EQ(ShardInStage(*layout, rank), rank / 2 % 2) << rank;
    EXPECT_EQ(role.shard_in_stage(), rank / 2 % 2) << rank;
  }
  EXPECT_EQ(layout->weights.size(), 8u);
}

// Four layers of 12 tensors, two of embeddings and two of the last norm.
TEST(TensorRanks, SharesOfATensorAreExplainedAsOne) {
  Train train = Tiny(1, 2);
  const Inventory inventory = *models::MakeInventory(train);
  const auto cuts = [&] {
    const Layout layout = *MakeLayout(train, inventory, AnyPlaces(4));
    return partition::Lines(partition::Explain(layout.table, inventory)).back();
  };
  EXPECT_THAT(cuts(),
              HasSubstr(" of 52 tensors are split between shards, in addition to the split over 2 tensor ranks: each "
                        "unit is divided into equal parts"));
  train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_NO_SHARD);
  EXPECT_EQ(cuts(), "0 of 52 tensors are split between shards, in addition to the split over 2 tensor ranks");
}

// What the ranks own of each tensor, by the elements of the whole, each of which is written by one of them.
TEST(TensorRanks, OwnEachElementOfTheWholeOnce) {
  for (const uint32_t tensor : {2u, 4u}) {
    const Train train = Tiny(2, tensor);
    const Inventory inventory = *models::MakeInventory(train);
    const Layout layout = *MakeLayout(train, inventory, AnyPlaces(4 * tensor));
    std::map<std::string, std::vector<int>> written;
    for (const Unit& unit : inventory.units()) {
      for (const Tensor& whole : unit.tensors()) written[whole.name()].resize(models::Elements(whole));
    }
    for (uint32_t stage = 0; stage < 2; ++stage) {
      for (uint32_t t = 0; t < tensor; ++t) {
        const StageModel model(inventory, layout, stage, t);
        ASSERT_TRUE(partition::Check(model.table(), model.inventory()).ok());
        for (const Unit& unit : model.inventory().units()) {
          for (const Tensor& own : unit.tensors()) {
            if (!models::Counts(model.inventory(), own)) continue;
            const models::FlatBox box = models::FlatBoxOf(own);
            for (uint64_t e = 0; e < models::Elements(own); ++e) ++written[own.name()].at(box.Whole(e));
          }
        }
      }
    }
    for (const auto& [name, times] : written) {
      EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << name << " on " << tensor;
    }
  }
}

// The ranks of all shares of a stage run one program, whose passes name their group, and which the checker holds to.
TEST(TensorRanks, RunOneProgramAStage) {
  const Train train = Tiny(2, 2);
  const Inventory inventory = *models::MakeInventory(train);
  const Layout layout = *MakeLayout(train, inventory, AnyPlaces(8));
  std::vector<std::string> digests;
  for (uint32_t rank = 0; rank < 8; ++rank) {
    const auto program = Compile(train, inventory, layout, rank);
    ASSERT_TRUE(program.ok()) << program.status();
    digests.push_back(program->digest);
    for (const Schedule* schedule : {&program->schedule, &program->evaluation}) {
      for (const Op& op : schedule->ops) {
        if (Traits(op.kind).pass == Pass::kNone) continue;
        EXPECT_EQ(op.group, kTensorGroup) << Print(op, inventory);
      }
    }
  }
  for (uint32_t rank = 0; rank < 8; ++rank) EXPECT_EQ(digests[rank], digests[rank / 4 * 4]) << rank;
  EXPECT_NE(digests[0], digests[4]);
  EXPECT_TRUE(Outline(train, inventory, layout).ok());
}

// Of each block and microbatch. The ranks of all shares exchange in the first half, and nothing in the second.
TEST(TensorRanks, SplitBackwardsOfZeroBubble) {
  Train train = Tiny(2, 2);
  train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_ZERO_BUBBLE);
  train.mutable_pipeline()->set_chunks(1);
  for (const bool sequence_parallel : {false, true}) {
    train.mutable_parallel()->set_sequence_parallel(sequence_parallel);
    const Inventory inventory = *models::MakeInventory(train);
    const Layout layout = *MakeLayout(train, inventory, AnyPlaces(8));
    ASSERT_TRUE(Outline(train, inventory, layout).ok());
    int halves = 0;
    for (const uint32_t stage : {0u, 1u}) {
      const Inventory& own = StageModel(inventory, layout, stage).inventory();
      const auto program = Compile(train, inventory, layout, 4 * stage);
      ASSERT_TRUE(program.ok()) << program.status();
      const Schedule& right = program->schedule;
      ASSERT_EQ(Check(right, own), absl::OkStatus());
      for (size_t i = 0; i < right.ops.size(); ++i) {
        const OpKind kind = right.ops[i].kind;
        const bool block = right.ops[i].unit >= 0 && own.units(right.ops[i].unit).kind() == "gpt2.block";
        EXPECT_FALSE(block && kind == OpKind::kBackward) << i;
        if (kind != OpKind::kBackwardInputs && kind != OpKind::kBackwardWeights) continue;
        halves += kind == OpKind::kBackwardWeights;
        EXPECT_EQ(right.ops[i].group, kind == OpKind::kBackwardInputs ? kTensorGroup : -1) << Print(right.ops[i], own);
        Schedule wrong = right;
        wrong.ops[i].group = kind == OpKind::kBackwardInputs ? -1 : kTensorGroup;
        EXPECT_THAT(std::string(Check(wrong, own).message()),
                    HasSubstr(kind == OpKind::kBackwardInputs ? "has not their group" : "is not a collective"));
      }
    }
    EXPECT_EQ(halves, 4 * 4) << "four layers, four microbatches";
  }
}

// By hand, in 1e6 FLOPs a token of both tensor ranks. A block of width 128 and 128 tokens takes F = 24 x 128^2 + 2 x
// 128^2 = 0.426 forward, W = 24 x 128^2 = 0.393 for the gradients of its weights and B = 2 F - W = 0.459 for that of
// its input; the head of 256 ids takes 0.066, and twice that backward. Two stages of two blocks and eight microbatches
// by 1F1B: the second stage has the head, waits for the first forward, and is waited for by the last backward of the
// first, which makes 2 F + 8 (2 F + 2 B + 2 W + 0.197) + 2 B + 2 W = 24.58. By ZB-H1 (Qi et al. 2024, section 2.3) the
// second stage has two microbatches' W left when its last B is done: 4 W less, 23.00.
TEST(TensorRanks, ZeroBubbleIsFaster) {
  const Hardware hardware{
      .fp32_flops = 1e9, .memory_bytes_per_second = 1e15, .inside = {1e15, 0}, .between = {1e15, 0}};
  Train train = Tiny(2, 2);
  train.mutable_strategy()->mutable_single();
  const std::vector<RankPlace> ranks = FullNodes(4, 4, 0);
  for (const bool sequence_parallel : {false, true}) {
    train.mutable_parallel()->set_sequence_parallel(sequence_parallel);
    const Inventory inventory = *models::MakeInventory(train);
    const auto seconds = [&](PipelineSchedule schedule) {
      train.mutable_pipeline()->set_schedule(schedule), train.mutable_pipeline()->set_chunks(1);
      const Layout layout = *MakeLayout(train, inventory, ranks);
      const std::vector<RankProgram> programs = *Outline(train, inventory, layout);
      return PredictStep(train, inventory, layout, programs, ranks, hardware)[0].timeline.seconds;
    };
    EXPECT_NEAR(seconds(PIPELINE_SCHEDULE_ZERO_BUBBLE) / seconds(PIPELINE_SCHEDULE_1F1B), 23.00 / 24.58, 0.005);
  }
}

// A block of width c has 12 c^2 weights in matrices, which are divided, and 3 c + 4 c of biases that are; 2 x 2 c of
// norms and 2 c of biases are on both ranks. All of it is 4 bytes of weights, gradients and two moments each.
TEST(TensorRanks, DivideWhatIsKept) {
  Train train = Tiny(1, 2);
  train.mutable_strategy()->mutable_ddp();
  const Inventory inventory = *models::MakeInventory(train);
  const Layout layout = *MakeLayout(train, inventory, AnyPlaces(2));
  const auto programs = *Outline(train, inventory, layout);
  const std::vector<Memory> memory = MemoryByShard(train, inventory, layout, programs);
  ASSERT_EQ(memory.size(), 2u);
  const uint64_t c = 128, blocks = 4 * ((12 * c * c + 7 * c) / 2 + 6 * c), embedding = 128 * c + 128 * c, head = 2 * c;
  for (const Memory& own : memory) {
    EXPECT_EQ(own.parameters, 4 * (blocks + embedding + head));
    EXPECT_EQ(own.gradients, 4 * (blocks + embedding + head));
    EXPECT_EQ(own.optimizer_state, 8 * (blocks + embedding + head));
  }
}

// By hand. Two ranks, links of 1 byte/s without latency, a sample of 8 tokens: a sum receives as many bytes as it has,
// and moves twice as many, of which each rank receives half. Of 400 bytes 200 are in four chunks, of which three are
// under way while a rank computes, and 100 are under way while it computes the gradients of weights.
TEST(TensorRanks, WaitForWhatDoesNotTravelWhileTheyCompute) {
  Inventory inventory;
  inventory.mutable_task()->set_targets_per_sample(8);
  Unit unit;
  unit.set_piece_rows(2);
  TensorExchange::Pass& backward = *unit.mutable_tensor_exchange()->mutable_backward();
  backward.set_summed_bytes(400);
  backward.set_collectives(2);
  backward.set_chunked_collectives(1);
  backward.set_chunked_bytes(400);
  backward.set_overlapped_bytes(200);
  Hardware hardware;
  hardware.inside.bytes_per_second = 1;
  const ExchangeTopologies two{.tensor = {.ranks = 2, .nodes = 1, .least_on_node = 2}};
  const auto seconds = [&](double computing) {
    return TensorExchangeCost(inventory, unit, Pass::kBackward, 4, 1, computing, two, hardware).work;
  };
  EXPECT_DOUBLE_EQ(seconds(0), 400);
  EXPECT_DOUBLE_EQ(seconds(1e6), 400 - 150 - 100);
  EXPECT_DOUBLE_EQ(seconds(300), 400 - 150) << "half of the pass is beside sums";
  EXPECT_DOUBLE_EQ(TensorExchangeCost(inventory, unit, Pass::kBackwardInputs, 4, 1, 1e6, two, hardware).work, 400 - 150)
      << "the gradients of weights are computed later";
  unit.set_piece_rows(8);
  EXPECT_DOUBLE_EQ(seconds(1e6), 400 - 100) << "one piece is summed after it is computed";
  hardware.sharing = Sharing::kProcessor;
  EXPECT_DOUBLE_EQ(seconds(1e6), 400) << "the cores that compute also move the bytes";
  const auto in_bf16 = [&] {
    return TensorExchangeCost(inventory, unit, Pass::kBackward, 2, 1, 1e6, two, hardware).work;
  };
  EXPECT_DOUBLE_EQ(in_bf16(), 400) << "as the embedding, which sums rows in fp32";
  unit.mutable_attention();
  EXPECT_DOUBLE_EQ(in_bf16(), 200) << "inputs and results of GEMMs";
}

TEST(TensorRanks, AreRefusedWhereTheyDoNotFit) {
  EXPECT_THAT(std::string(models::MakeInventory(Tiny(1, 3)).status().message()), HasSubstr("parallel.tensor: heads"));
  Train train = Tiny(2, 2);
  const Inventory inventory = *models::MakeInventory(train);
  EXPECT_THAT(std::string(MakeLayout(train, inventory, AnyPlaces(6)).status().message()),
              HasSubstr("parallel.tensor: 2 ranks for each unit do not divide 3 ranks of a stage"));
  train.mutable_lora()->set_rank(4);
  EXPECT_THAT(std::string(models::MakeInventory(train).status().message()), HasSubstr("parallel.tensor: adapters"));
  Train images;
  images.mutable_model()->mutable_resnet()->set_depth(20);
  images.mutable_parallel()->set_tensor(2);
  EXPECT_THAT(std::string(models::MakeInventory(images).status().message()),
              HasSubstr("parallel.tensor: models of family resnet compute each unit on one rank"));
}

TEST(TensorRanks, TablesThatMixUpSharesAreRefused) {
  const Train train = Tiny(1, 2);
  const Inventory inventory = *models::MakeInventory(train);
  const Layout layout = *MakeLayout(train, inventory, AnyPlaces(4));
  const auto wrong = [&](auto&& change) {
    PartitionTable table = layout.table;
    change(table);
    return std::string(partition::Check(table, inventory).message());
  };
  EXPECT_EQ(wrong([](PartitionTable&) {}), "");
  EXPECT_THAT(wrong([](PartitionTable& t) { t.mutable_units(7)->set_tensor(0); }), HasSubstr("share 0 of its tensors"));
  EXPECT_THAT(wrong([](PartitionTable& t) { t.set_tensor(1); }), HasSubstr("1 ranks compute a unit together, and 2"));
  EXPECT_THAT(wrong([](PartitionTable& t) { t.mutable_units()->RemoveLast(); }),
              HasSubstr("11 units, the model has 6"));
  EXPECT_THAT(wrong([](PartitionTable& t) { t.set_shards(3); }), HasSubstr("3 shards"));
}

}  // namespace
}  // namespace muster::strategies
