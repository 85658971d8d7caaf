// Layouts and schedules of models whose sequences several ranks share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"
#include "strategies/choose.h"
#include "strategies/compile.h"
#include "strategies/cost.h"
#include "strategies/fit.h"
#include "strategies/hardware.h"
#include "strategies/partition/table.h"
#include "strategies/schedule/check.h"

namespace muster::strategies {
namespace {

using ::testing::HasSubstr;

struct Division {
  uint32_t pipeline = 1, context = 1, tensor = 1;
  bool sequence_parallel = false;

  uint32_t ranks() const { return pipeline * context * tensor; }
};

// GPT-2 tiny: 4 layers of width 128, 4 heads, vocabulary 256, context 128. Eight sequences, one a microbatch.
Train DividedTiny(const Division& of) {
  Train train;
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  *train.mutable_model() = *models::Resolve(train.model());
  train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_FULL_SHARD);
  train.mutable_parallel()->set_pipeline(of.pipeline);
  train.mutable_parallel()->set_context(of.context);
  train.mutable_parallel()->set_tensor(of.tensor);
  train.mutable_parallel()->set_sequence_parallel(of.sequence_parallel);
  train.mutable_batch()->set_sequences(8);
  train.mutable_batch()->set_microbatch(1);
  train.mutable_optimizer()->mutable_adamw();
  train.mutable_precision()->set_compute(DTYPE_FP32);
  train.mutable_precision()->set_reduce(DTYPE_FP32);
  return train;
}

// rank = ((p R + r) S + s) T + t with P = 2, R = 1, S = 4, T = 2, and two neighbors of four on the same samples.
TEST(ContextRanks, ReadTheSameSamples) {
  const Train train = DividedTiny({.pipeline = 2, .context = 2, .tensor = 2});
  const Inventory inventory = *models::MakeInventory(train);
  const auto layout = MakeLayout(train, inventory, AnyPlaces(16));
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->mesh, (Mesh{.pipeline = 2, .replica = 1, .shard = 4, .tensor = 2, .context = 2}));
  const uint64_t first[] = {0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4};
  for (uint32_t rank = 0; rank < 16; ++rank) {
    EXPECT_EQ(ShareOf(8, layout->mesh, rank).first, first[rank]) << rank;
    EXPECT_EQ(ShareOf(8, layout->mesh, rank).sequences, 4u) << rank;
    EXPECT_EQ(layout->roles[rank].shard(), rank) << "each rank owns a part of its own";
  }
  const auto again = LayoutOf(layout->table, inventory, 32);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->mesh, (Mesh{.pipeline = 2, .replica = 2, .shard = 4, .tensor = 2, .context = 2}));
}

TEST(ContextRanks, AreRefusedWhereTheyDoNotFit) {
  const auto error = [](const Division& of, uint32_t ranks) {
    const Train train = DividedTiny(of);
    return std::string(MakeLayout(train, *models::MakeInventory(train), AnyPlaces(ranks)).status().message());
  };
  EXPECT_EQ(error({.context = 2}, 4), "");
  EXPECT_EQ(error({.context = 4}, 6),
            "parallel.context: 4 ranks for each sequence do not divide 6 data-parallel ranks");
  EXPECT_EQ(error({.context = 2}, 1),
            "parallel.context: 2 ranks for each sequence do not divide 1 data-parallel ranks");
  EXPECT_EQ(error({.pipeline = 2, .context = 2, .tensor = 2}, 12),
            "parallel.context: 2 ranks for each sequence do not divide 3 data-parallel ranks of a stage and a share of "
            "its tensors");
  const Train train = DividedTiny({.context = 2});
  const Inventory inventory = *models::MakeInventory(train);
  const Layout layout = *MakeLayout(train, inventory, AnyPlaces(2));
  PartitionTable table = layout.table;
  EXPECT_TRUE(LayoutOf(table, inventory, 4).ok());
  Train alone = train;
  alone.mutable_parallel()->set_context(4);
  EXPECT_THAT(std::string(LayoutOf(table, *models::MakeInventory(alone), 2).status().message()),
              HasSubstr("parallel.context: 4 ranks for each sequence do not divide 2"));
}

struct Mode {
  std::string name;
  std::function<void(Train&)> choose;
};
std::vector<Mode> DataModes() {
  std::vector<Mode> modes = {{"ddp", [](Train& train) { train.mutable_strategy()->mutable_ddp(); }}};
  for (const uint32_t stage : {1u, 2u, 3u}) {
    modes.push_back({absl::StrCat("zero ", stage),
                     [stage](Train& train) { train.mutable_strategy()->mutable_zero()->set_stage(stage); }});
  }
  for (const Reshard reshard : {RESHARD_SHARD_GRAD_OP, RESHARD_FULL_SHARD}) {
    modes.push_back({Reshard_Name(reshard), [reshard](Train& train) { *train.mutable_strategy() = FsdpOf(reshard); }});
  }
  modes.push_back({"hybrid", [](Train& train) {
                     *train.mutable_strategy() = FsdpOf(RESHARD_HYBRID);
                     train.mutable_strategy()->mutable_fsdp()->set_shard_ranks(2);
                   }});
  modes.push_back({"recomputed", [](Train& train) { train.set_activation_checkpointing(true); }});
  return modes;
}
std::vector<Mode> PipelineModes() {
  const auto by = [](PipelineSchedule schedule, uint32_t chunks) {
    return [=](Train& train) {
      train.mutable_pipeline()->set_schedule(schedule), train.mutable_pipeline()->set_chunks(chunks);
    };
  };
  return {{"1f1b", by(PIPELINE_SCHEDULE_1F1B, 1)},
          {"interleaved", by(PIPELINE_SCHEDULE_INTERLEAVED, 2)},
          {"zero_bubble", by(PIPELINE_SCHEDULE_ZERO_BUBBLE, 1)},
          {"zero_bubble in a V", by(PIPELINE_SCHEDULE_ZERO_BUBBLE, 2)}};
}

// The group of a pass, by what its unit is and does.
int32_t ExpectedGroup(const Unit& unit, OpKind kind, const Division& of) {
  if (kind == OpKind::kBackwardWeights) return -1;
  const bool block = unit.kind() == "gpt2.block" && of.context > 1;
  if (of.tensor > 1) return block ? kContextTensorGroup : kTensorGroup;
  return block ? kContextGroup : -1;
}

// All ranks of a stage run one program, which the checker and the proof of the stages have passed. Two groups of ranks
// divide the eight sequences.
TEST(ContextRanks, RunOneProgramAStage) {
  int plans = 0;
  for (const uint32_t context : {2u, 4u}) {
    for (const auto& [tensor, sequence_parallel] :
         std::vector<std::pair<uint32_t, bool>>{{1, false}, {2, false}, {2, true}}) {
      for (const uint32_t pipeline : {1u, 2u}) {
        for (const Mode& mode : pipeline > 1 ? PipelineModes() : DataModes()) {
          const Division of{pipeline, context, tensor, sequence_parallel};
          const std::string name = absl::StrCat(mode.name, ", ", pipeline, " x ", context, " x ", tensor);
          Train train = DividedTiny(of);
          mode.choose(train);
          const Inventory inventory = *models::MakeInventory(train);
          const auto layout = MakeLayout(train, inventory, AnyPlaces(2 * of.ranks()));
          ASSERT_TRUE(layout.ok()) << layout.status() << name;
          ASSERT_TRUE(Outline(train, inventory, *layout).ok()) << name;
          const auto stages = CompileStages(train, inventory, *layout);
          ASSERT_TRUE(stages.ok()) << stages.status() << name;
          for (uint32_t rank = 0; rank < 2 * of.ranks(); ++rank) {
            const auto program = Compile(train, inventory, *layout, rank);
            ASSERT_TRUE(program.ok()) << program.status() << name;
            const uint32_t stage = layout->roles[rank].stage();
            EXPECT_EQ(program->digest, (*stages)[stage].digest) << name;
            if (rank != stage * layout->mesh.ranks_of_stage()) continue;
            EXPECT_EQ(program->schedule.microbatches, 4) << name;
            const Inventory& own = StageModel(inventory, *layout, stage).inventory();
            for (const Schedule* schedule : {&program->schedule, &program->evaluation}) {
              for (const Op& op : schedule->ops) {
                if (Traits(op.kind).pass == Pass::kNone) continue;
                EXPECT_EQ(op.group, ExpectedGroup(own.units(op.unit), op.kind, of)) << name << Print(op, own);
              }
            }
          }
          ++plans;
        }
      }
    }
  }
  EXPECT_EQ(plans, 2 * 3 * (8 + 4));
}

// Every pass of a schedule, with each wrong group.
TEST(ContextRanks, OpsWithoutTheirGroupAreFound) {
  for (const uint32_t tensor : {1u, 2u}) {
    Train train = DividedTiny({.pipeline = 2, .context = 2, .tensor = tensor});
    train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_ZERO_BUBBLE), train.mutable_pipeline()->set_chunks(1);
    const Inventory inventory = *models::MakeInventory(train);
    const Layout layout = *MakeLayout(train, inventory, AnyPlaces(4 * tensor));
    int blocks = 0;
    for (const uint32_t stage : {0u, 1u}) {
      const Inventory& own = StageModel(inventory, layout, stage).inventory();
      const auto program = Compile(train, inventory, layout, 2 * tensor * stage);
      ASSERT_TRUE(program.ok()) << program.status();
      Schedule wrong = program->schedule;
      ASSERT_EQ(Check(wrong, own), absl::OkStatus());
      for (Op& op : wrong.ops) {
        if (Traits(op.kind).pass == Pass::kNone) continue;
        const int32_t right = op.group;
        blocks += right == kContextGroup || right == kContextTensorGroup;
        for (const int32_t group :
             {-1, kWorldGroup, kExchangeGroup, kTensorGroup, kContextGroup, kContextTensorGroup}) {
          if (group == right) continue;
          op.group = group;
          EXPECT_THAT(std::string(Check(wrong, own).message()),
                      HasSubstr(op.kind == OpKind::kBackwardWeights ? "is not a collective"
                                : right >= 0                        ? "has not their group"
                                                                    : "exchanges nothing"))
              << Print(op, own);
        }
        op.group = right;
      }
    }
    EXPECT_EQ(blocks, 2 * 4 * 8) << "forward and back through four layers, eight microbatches";
  }
}

// Of a sample a rank keeps its own tokens. In streams of 128 tokens of 128 fp32, attention's keys and values and their
// gradients are four, of one block at a time.
TEST(ContextRanks, KeepLess) {
  constexpr uint64_t kStream = 128 * 128 * 4;
  for (const Mode& mode : DataModes()) {
    const auto memory = [&](uint32_t context) {
      Train train = DividedTiny({.context = context});
      mode.choose(train);
      const Inventory inventory = *models::MakeInventory(train);
      const Layout layout = *MakeLayout(train, inventory, AnyPlaces(8));
      return MemoryByShard(train, inventory, layout, *Outline(train, inventory, layout))[0];
    };
    const Memory whole = memory(1);
    for (const uint32_t context : {2u, 4u}) {
      const Memory part = memory(context);
      EXPECT_LT(static_cast<double>(part.activations), 0.75 * static_cast<double>(whole.activations)) << mode.name;
      EXPECT_GE(part.activations, whole.activations / context) << mode.name;
      EXPECT_LE(part.activations, whole.activations / context + 4 * kStream) << mode.name;
      EXPECT_EQ(part.parameters, whole.parameters) << mode.name;
      EXPECT_EQ(part.gradients, whole.gradients) << mode.name;
      EXPECT_EQ(part.optimizer_state, whole.optimizer_state) << mode.name;
    }
  }
}

// Of one unit with both exchanges, by hand. A tensor rank is on the same node, at 4 bytes/s and 0.1 s, and the other
// context rank on another one, at 1 byte/s and 1 s; each gathers what the other one has.
TEST(ContextRanks, PayForEachExchangeOnItsLinks) {
  Inventory inventory;
  inventory.mutable_task()->set_targets_per_sample(8);
  Unit unit;
  TensorExchange &tensor = *unit.mutable_tensor_exchange(), &context = *unit.mutable_context_exchange();
  tensor.mutable_forward()->set_collectives(1), tensor.mutable_forward()->set_gathered_bytes(40);
  context.mutable_forward()->set_collectives(1), context.mutable_forward()->set_gathered_bytes(30);
  context.mutable_backward()->set_collectives(2), context.mutable_backward()->set_gathered_bytes(30);
  context.mutable_backward()->set_scattered_bytes(20);
  Hardware hardware;
  hardware.inside = {.bytes_per_second = 4, .seconds = 0.1}, hardware.between = {.bytes_per_second = 1, .seconds = 1};
  const ExchangeTopologies groups{.tensor = {.ranks = 2, .nodes = 1, .least_on_node = 2},
                                  .context = {.ranks = 2, .nodes = 2, .least_on_node = 1}};
  const auto cost = [&](Pass pass, double samples) {
    return TensorExchangeCost(inventory, unit, pass, 4, samples, 1e6, groups, hardware);
  };
  EXPECT_DOUBLE_EQ(cost(Pass::kForward, 1).work, 40 / 4.0 + 30);
  EXPECT_DOUBLE_EQ(cost(Pass::kForward, 1).latency, 0.1 + 1);
  EXPECT_DOUBLE_EQ(cost(Pass::kForward, 3).work, 3 * (40 / 4.0 + 30));
  EXPECT_DOUBLE_EQ(cost(Pass::kBackward, 1).work, 30 + 20);
  EXPECT_DOUBLE_EQ(cost(Pass::kBackward, 1).latency, 2);
  EXPECT_DOUBLE_EQ(cost(Pass::kForward, 0).work, 0) << "none without samples";
  unit.clear_tensor_exchange();
  EXPECT_DOUBLE_EQ(cost(Pass::kForward, 1).work, 30);
}

// Nothing but the links between two nodes takes time, each with a rank of every sequence, 1 GB/s and 1 ms. By hand:
// four layers gather 64 tokens' keys and values, 64 KiB of a sample, forward and back, and scatter as much.
TEST(ContextRanks, WaitForKeysInComputing) {
  Train train = DividedTiny({.context = 2});
  train.mutable_strategy()->mutable_ddp();
  train.mutable_batch()->set_microbatch(2);
  const Inventory inventory = *models::MakeInventory(train);
  const std::vector<RankPlace> ranks = FullNodes(2, 1, 0);
  Hardware hardware{.fp32_flops = 1e30, .memory_bytes_per_second = 1e30};
  hardware.inside = {1e30, 0}, hardware.between = {1e9, 1e-3};
  const Layout layout = *MakeLayout(train, inventory, ranks);
  const std::vector<RankProgram> programs = *Outline(train, inventory, layout);
  const Predicted predicted = PredictStep(train, inventory, layout, programs, ranks, hardware)[0];
  const double expected = 4 * 4 * (3 * 1e-3 + 3 * 2 * 65536 / 1e9);
  EXPECT_NEAR(predicted.exchanged, expected, 1e-9);
  EXPECT_NEAR(predicted.timeline.busy[static_cast<size_t>(Stream::kCompute)], expected, 1e-9);
}

TEST(ContextRanks, AStrategyIsChosenForThem) {
  Train train = DividedTiny({.context = 2});
  train.mutable_strategy()->mutable_auto_();
  const Inventory inventory = *models::MakeInventory(train);
  for (const uint32_t ranks : {2u, 8u}) {
    const auto choice = Choose(train, inventory, FullNodes(ranks, 8, uint64_t{80} << 30), *FindHardware("cpu"));
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_TRUE(choice->fits) << choice->reason;
    EXPECT_EQ(choice->train().parallel().context(), 2u);
    EXPECT_EQ(choice->memory_plan.layout.mesh.context, 2u);
    EXPECT_FALSE(choice->train().strategy().has_single()) << "two ranks have gradients to add up";
  }
  // Too small for any: the advice stays with ranks that share sequences.
  const auto none = Choose(train, inventory, FullNodes(2, 2, uint64_t{1} << 20), *FindHardware("cpu"));
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->fits);
  EXPECT_NE(WhatWouldFit(none->train(), inventory, FullNodes(2, 2, uint64_t{1} << 20)), "");
}

}  // namespace
}  // namespace muster::strategies
