// What planning may cost: that outlines show what whole programs do, that advice keeps to what a spec may ask for, and
// that work is counted and ended.
#include "strategies/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "models/inventory.h"
#include "strategies/choose.h"
#include "strategies/cost.h"
#include "strategies/defaults.h"
#include "strategies/fit.h"

namespace muster::strategies {
namespace {

Train Layered(uint32_t layers, uint32_t ranks, uint32_t microbatches) {
  Train train;
  Gpt2& model = *train.mutable_model()->mutable_gpt2();
  model.set_size(GPT2_SIZE_TINY);
  model.set_layers(layers);
  *train.mutable_model() = *models::Resolve(train.model());
  train.mutable_batch()->set_sequences(ranks * microbatches);
  train.mutable_batch()->set_microbatch(1);
  train.mutable_optimizer()->mutable_adamw();
  return train;
}

TEST(Budget, CountsWorkAndEndsIt) {
  Budget budget({.work = 100, .bytes = 4 << 20});
  EXPECT_EQ(budget.Spend(60, [] { return "x"; }), absl::OkStatus());
  const absl::Status over = budget.Spend(41, [] { return "a table of 9 ranks; use fewer ranks"; });
  EXPECT_EQ(over.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(over.message(), "planning stops at its limit of work: a table of 9 ranks; use fewer ranks");
  EXPECT_EQ(budget.Spend(40, [] { return "x"; }), absl::OkStatus());
  EXPECT_EQ(budget.Hold(4 << 20, [] { return "x"; }), absl::OkStatus());
  EXPECT_EQ(budget.Hold((4 << 20) + 1, [] { return "x"; }).code(), absl::StatusCode::kResourceExhausted);
  bool gone = false;
  Budget cancelled({}, [&] { return gone; });
  EXPECT_EQ(cancelled.Spend(1, [] { return "x"; }), absl::OkStatus());
  gone = true;
  EXPECT_EQ(cancelled.Spend(1, [] { return "x"; }).code(), absl::StatusCode::kCancelled);
}

TEST(Budget, APlanThatExceedsItSaysWhatToChange) {
  const Train train = With(Layered(50, 4, 100), FsdpOf(RESHARD_FULL_SHARD), false);
  const Inventory inventory = *models::MakeInventory(train.model());
  Budget budget({.work = 100'000});
  const absl::Status status = PlanMemory(train, inventory, AnyPlaces(4), &budget).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(status.message(), "of 52 units")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "raise batch.microbatch")) << status;
}

// The largest schedules that a spec may ask for.
TEST(Budget, HoldsTheLargestOfEachStrategy) {
  for (const uint32_t layers : {1u, 100u, 998u, 4096u}) {
    const uint32_t units = layers + 2, microbatches = static_cast<uint32_t>(kMaxUnitMicrobatches / units);
    Train train = Layered(layers, 8, microbatches);
    train.mutable_strategy()->mutable_auto_();
    const Inventory inventory = *models::MakeInventory(train.model());
    const std::vector<RankPlace> ranks = FullNodes(8, 4, 1 << 20);
    Budget budget;
    const auto choice = Choose(train, inventory, ranks, *FindHardware("h100"), &budget);
    ASSERT_TRUE(choice.ok()) << layers << ": " << choice.status();
    const auto whole = CompileWhole(choice->train(), inventory, choice->memory_plan, &budget);
    ASSERT_TRUE(whole.ok()) << layers << ": " << whole.status();
    EXPECT_NE(WhatWouldFit(choice->train(), inventory, ranks, &budget), "");
    EXPECT_LT(whole->at(0).names.bytes(), size_t{4} << 20);
  }
}

TEST(Budget, HoldsTheLargestPipelines) {
  struct Case {
    uint32_t stages;
    PipelineSchedule schedule;
    uint32_t chunks;
  };
  for (const auto& [stages, schedule, chunks] : {Case{2, PIPELINE_SCHEDULE_1F1B, 1},
                                                 {4, PIPELINE_SCHEDULE_INTERLEAVED, 4},
                                                 {8, PIPELINE_SCHEDULE_ZERO_BUBBLE, 2}}) {
    Train train = Layered(100, 2, static_cast<uint32_t>(kMaxUnitMicrobatches / 102));
    train.mutable_parallel()->set_pipeline(stages);
    train.mutable_pipeline()->set_schedule(schedule);
    train.mutable_pipeline()->set_chunks(chunks);
    train.mutable_strategy()->mutable_auto_();
    const Inventory inventory = *models::MakeInventory(train.model());
    Budget budget;
    const auto choice = Choose(train, inventory, FullNodes(2 * stages, 8, 1 << 20), *FindHardware("h100"), &budget);
    ASSERT_TRUE(choice.ok()) << stages << ": " << choice.status();
    ASSERT_GT(choice->memory_plan.programs[0].left_out, 0u);
    const auto whole = CompileWhole(choice->train(), inventory, choice->memory_plan, &budget);
    ASSERT_TRUE(whole.ok()) << stages << ": " << whole.status();
  }
}

// The plan of a pipeline by GPipe has all microbatches, that of others fewer.
TEST(Budget, GPipeOfVeryManyMicrobatchesIsRefused) {
  Train train = Layered(100, 1, 2048);
  train.mutable_strategy()->mutable_single();
  train.mutable_parallel()->set_pipeline(2);
  const Inventory inventory = *models::MakeInventory(train.model());
  const auto plan = [&](PipelineSchedule schedule) {
    train.mutable_pipeline()->set_schedule(schedule);
    Budget budget({.work = 4'000'000});
    return PlanMemory(train, inventory, AnyPlaces(2), &budget).status();
  };
  EXPECT_EQ(plan(PIPELINE_SCHEDULE_1F1B), absl::OkStatus());
  const absl::Status refused = plan(PIPELINE_SCHEDULE_GPIPE);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_TRUE(
      absl::StartsWith(refused.message(), "planning stops at its limit of work: a schedule of 2048 microbatches of "))
      << refused;
  EXPECT_TRUE(absl::EndsWith(refused.message(), " ops; raise batch.microbatch")) << refused;
}

// What stages send each other is compared over all of a step, also where its plan shows only a part. All stages'
// programs are held for that.
TEST(CompileWhole, ProvesThatTheStagesFitTogether) {
  Train train = Layered(700, 1, 40);
  train.mutable_strategy()->mutable_single();
  train.mutable_parallel()->set_pipeline(8);
  train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_1F1B);
  const Inventory inventory = *models::MakeInventory(train.model());
  MemoryPlan plan = *PlanMemory(train, inventory, AnyPlaces(8));
  ASSERT_EQ(plan.programs[0].left_out, 8u);
  Budget budget;
  const auto whole = CompileWhole(train, inventory, plan, &budget);
  ASSERT_TRUE(whole.ok()) << whole.status();
  uint64_t ops = 0;
  for (const WholeProgram& program : *whole) ops += program.names.ops();
  EXPECT_GE(budget.most_bytes(), ops * sizeof(Op));
  // The second stage is compiled for another model than the first: it reads four bytes of a sample.
  auto parts = std::make_shared<std::vector<ModelPart>>(*plan.layout.parts);
  parts->at(1).inventory.mutable_chunks(0)->set_input_bytes(4);
  plan.layout.parts = std::move(parts);
  const absl::Status refused = CompileWhole(train, inventory, plan).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInternal) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "stage 0 issues SendActivation")) << refused;
}

// An outline leaves microbatches out: peaks are those of the whole program, and so is the time, nearly.
TEST(Outline, ShowsWhatTheWholeProgramNeeds) {
  std::mt19937 random(5);
  for (int i = 0; i < 40; ++i) {
    const uint32_t layers = 700 + random() % 600, microbatches = 10 + random() % 12;
    Train train = Layered(layers, 4, microbatches);
    if (random() % 2 == 0) train.mutable_batch()->set_sequences(4 * microbatches * 3 - random() % 8);
    train.mutable_batch()->set_microbatch(train.batch().sequences() > 4 * microbatches ? 3 : 1);
    Strategy strategy;
    if (random() % 3 == 0) {
      strategy.mutable_zero()->set_stage(1 + random() % 3);
      strategy.mutable_zero()->set_prefetch(random() % 65);
    } else if (random() % 8 == 0) {
      strategy.mutable_ddp();
    } else {
      strategy = FsdpOf(random() % 3 == 0 ? RESHARD_SHARD_GRAD_OP : RESHARD_FULL_SHARD);
      strategy.mutable_fsdp()->set_prefetch(random() % 2 == 0 ? 1 : random() % 65);
      if (random() % 4 == 0) strategy.mutable_fsdp()->set_accumulation(ACCUMULATION_HOLD);
    }
    train = With(train, strategy, random() % 2 == 0);
    train.mutable_offload()->set_activations(train.activation_checkpointing() && random() % 2 == 0);
    const Inventory inventory = *models::MakeInventory(train.model());
    const std::vector<RankPlace> ranks = FullNodes(4, 2, 0);
    const MemoryPlan plan = *PlanMemory(train, inventory, ranks);
    ASSERT_GT(plan.programs[0].left_out, 0u);
    const RankProgram whole = *Compile(train, inventory, plan.layout, 0);
    const std::vector<Memory> memory = MemoryByShard(train, inventory, plan.layout, {whole});
    ASSERT_EQ(memory.size(), plan.by_shard.size());
    for (size_t s = 0; s < memory.size(); ++s) ASSERT_EQ(memory[s].peak, plan.by_shard[s].peak) << NameOf(train);
    const Hardware h100 = *FindHardware("h100");
    const Timeline a = PredictStep(train, inventory, plan.layout, plan.programs, ranks, h100)[0].timeline;
    const Timeline b = PredictStep(train, inventory, plan.layout, {whole}, ranks, h100)[0].timeline;
    EXPECT_NEAR(a.seconds / b.seconds, 1, 0.01) << NameOf(train) << " of " << layers << " layers";
    EXPECT_NEAR(a.communication, b.communication, 0.02 * b.seconds) << NameOf(train);
    EXPECT_NEAR(a.exposed, b.exposed, 0.02 * b.seconds) << NameOf(train);
    const WholeProgram kept = CompileWhole(train, inventory, plan)->at(0);
    EXPECT_EQ(kept.digest, whole.digest);
    ASSERT_EQ(kept.names.ops(), whole.schedule.ops.size());
    for (const size_t op : {size_t{0}, whole.schedule.ops.size() / 3, whole.schedule.ops.size() - 1}) {
      const Op& its = whole.schedule.ops[op];
      EXPECT_EQ(kept.names.NameOf(op),
                Print(Op{.kind = its.kind, .unit = its.unit, .unit_end = its.unit_end, .microbatch = its.microbatch},
                      inventory));
    }
    ASSERT_GT(kept.outlined, plan.programs[0].schedule.ops.size() / 2);
    for (size_t op = 0; op < kept.outlined; ++op) ASSERT_EQ(whole.schedule.ops[op], plan.programs[0].schedule.ops[op]);
  }
}

// Of 100 units an outline has about 80 microbatches, and the same number modulo the stages. By GPipe every stage keeps
// what its units save of all 162, so nothing is left out.
TEST(Outline, ShowsWhatTheStagesOfAPipelineNeed) {
  struct Case {
    PipelineSchedule schedule;
    uint32_t chunks;
    uint32_t left_out;
  };
  constexpr uint32_t kMicrobatches = 162;
  for (const auto& [schedule, chunks, left_out] : {Case{PIPELINE_SCHEDULE_1F1B, 1, 80},
                                                   {PIPELINE_SCHEDULE_GPIPE, 1, 0},
                                                   {PIPELINE_SCHEDULE_INTERLEAVED, 2, 80},
                                                   {PIPELINE_SCHEDULE_ZERO_BUBBLE, 1, 80},
                                                   {PIPELINE_SCHEDULE_ZERO_BUBBLE, 2, 80}}) {
    Train train = Layered(98, 1, kMicrobatches);
    train.mutable_strategy()->mutable_single();
    train.mutable_parallel()->set_pipeline(4);
    train.mutable_pipeline()->set_schedule(schedule);
    train.mutable_pipeline()->set_chunks(chunks);
    const std::string name = PipelineSchedule_Name(schedule);
    const Inventory inventory = *models::MakeInventory(train.model());
    const std::vector<RankPlace> ranks = FullNodes(4, 4, 0);
    const MemoryPlan plan = *PlanMemory(train, inventory, ranks);
    EXPECT_EQ(plan.programs[0].left_out, left_out) << name;
    const std::vector<RankProgram> whole = *CompileStages(train, inventory, plan.layout);
    const std::vector<Memory> memory = MemoryByShard(train, inventory, plan.layout, whole);
    ASSERT_EQ(memory.size(), 4u);
    ASSERT_EQ(plan.by_shard.size(), 4u);
    for (uint32_t stage = 0; stage < 4; ++stage) {
      EXPECT_EQ(plan.by_shard[stage].peak, memory[stage].peak) << name << ", stage " << stage;
      if (schedule != PIPELINE_SCHEDULE_GPIPE) continue;
      uint64_t saved = 0;
      for (const Unit& unit : StageModel(inventory, plan.layout, stage).inventory().units())
        saved += unit.saved_bytes();
      EXPECT_GE(plan.by_shard[stage].activations, kMicrobatches * saved) << stage;
    }
    const Hardware h100 = *FindHardware("h100");
    const auto seconds = [&](const std::vector<RankProgram>& programs) {
      return PredictStep(train, inventory, plan.layout, programs, ranks, h100)[0].timeline.seconds;
    };
    EXPECT_NEAR(seconds(plan.programs) / seconds(whole), 1, 0.01) << name << " of " << chunks << " chunks";
  }
}

// Regression: a job of 48 layers and 2^20 sequences, on slots of a byte, kept the coordinator busy until its memory was
// gone, since microbatches down to 1 were tried.
TEST(WhatWouldFit, TriesNoMicrobatchThatASpecMayNotAskFor) {
  Train train = Layered(48, 1, 1);
  train.mutable_strategy()->mutable_single();
  train.mutable_batch()->set_sequences(1 << 20);
  train.mutable_batch()->set_microbatch(1 << 20);
  const Inventory inventory = *models::MakeInventory(train.model());
  std::vector<RankPlace> ranks = AnyPlaces(1);
  // What 256 sequences need: 4,096 microbatches of 50 units. 128 are more than a spec may ask for.
  Train least = train;
  least.mutable_batch()->set_microbatch(256);
  ranks[0].memory_bytes = SlotBytesFor(PlanMemory(least, inventory, AnyPlaces(1))->peak());
  EXPECT_TRUE(absl::StrContains(WhatWouldFit(train, inventory, ranks), "batch.microbatch 256 "))
      << WhatWouldFit(train, inventory, ranks);
  ranks[0].memory_bytes -= 1 << 20;
  const std::string none = WhatWouldFit(train, inventory, ranks);
  EXPECT_FALSE(absl::StrContains(none, "batch.microbatch 128 ")) << none;
  ranks[0].memory_bytes = 1;
  Budget budget;
  EXPECT_TRUE(absl::StrContains(WhatWouldFit(train, inventory, ranks, &budget), "no configuration fits"));
}

TEST(MakeLayout, ATableThatIsTooLargeIsNotMade) {
  Train train = Layered(4096, 4096, 1);
  for (const Placement placement : {PLACEMENT_EVEN, PLACEMENT_ROWS, PLACEMENT_WHOLE, PLACEMENT_RAGGED}) {
    train.mutable_strategy()->mutable_zero()->set_placement(placement);
    FillDefaults(train.optimizer(), *train.mutable_strategy());
    Budget budget;
    const absl::Status status =
        MakeLayout(train, *models::MakeInventory(train.model()), AnyPlaces(4096), &budget).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "takes more than 15 MiB")) << status;
  }
}

}  // namespace
}  // namespace muster::strategies
