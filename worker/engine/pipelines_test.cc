// Pipelines train as one rank does, on any mesh, by every schedule and strategy.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/engine/strategy_trials_test.h"

namespace muster::engine {
namespace {

using T = ::muster::Train;

Trial OnStages(const std::string& name, uint32_t stages, const Choose& choose, const Model& model, bool sgd) {
  return {.name = name,
          .choose = choose,
          .ranks = stages,
          .microbatch = 1,
          .sgd = sgd,
          .set = [](Config& config) { config.check_accesses = true; },
          .model = model,
          .sgd_limit = 3e-6,
          .stages = stages};
}

// Seven sequences in microbatches of one: none of the numbers of stages divides them.
TEST(Pipelines, EveryScheduleTrainsAsOneRankDoes) {
  const Model model = LlamaTrialModel();
  for (const bool sgd : {true, false}) {
    const Curve expected = Train(OneRank(model, sgd));
    for (const auto& [name, schedule] : Schedules()) {
      for (const uint32_t stages : {2u, 4u}) {
        if (stages * schedule.second > 5) continue;  // it has five units
        const Trial trial = OnStages(absl::StrCat(name, " on ", stages, sgd ? " sgd" : ""), stages,
                                     By(schedule.first, schedule.second, Single), model, sgd);
        ExpectSame(trial, Train(trial), expected);
      }
    }
  }
}

TEST(Pipelines, EveryStrategyTrainsInsideThem) {
  // GPT-2's head borrows the embedding of another stage.
  for (const Model& model : {TrialModel(), LlamaTrialModel()}) {
    const Curve expected = Train(OneRank(model, true));
    for (const auto& [name, strategy] : Strategies()) {
      const bool hybrid = name.starts_with("hybrid");
      for (const auto& [schedule_name, schedule] : Schedules()) {
        Trial trial = OnStages(absl::StrCat(model.has_gpt2() ? "gpt2 " : "llama ", name, ", ", schedule_name), 2,
                               By(schedule.first, schedule.second, strategy), model, true);
        trial.ranks = hybrid ? 8 : 4;
        ExpectSame(trial, Train(trial), expected);
      }
    }
  }
}

// Strategies that differ in what a stage's ranks gather, reduce and keep.
const std::vector<std::string> kInside = {"ddp", "zero 2", "full_shard recomputed", "hybrid"};

// On two stages of four ranks each: shares of two sequences, and one of one, so that the last microbatch of one data
// rank is empty.
Trial OnTwoStagesOfFour(const std::string& name, const Choose& choose, const Model& model) {
  Trial trial = OnStages(name, 2, choose, model, /*sgd=*/true);
  trial.ranks = 8;
  return trial;
}

// The data ranks of each stage exchange statistics inside their passes, also those of empty microbatches.
TEST(Pipelines, SynchronizedBatchNormTrainsAsOneRankDoes) {
  Trial single = OneRank(ResnetTrialModel(), true);
  single.microbatch = 4, single.sgd_limit = 3e-6, single.as_ranks = 4, single.as_microbatch = 1;
  const Curve alone = Train(single, {.steps = kResnetSteps});
  for (const auto& [schedule_name, schedule] : Schedules()) {
    for (const std::string& name : kInside) {
      const Trial trial = OnTwoStagesOfFour(absl::StrCat(name, ", synchronized, ", schedule_name),
                                            By(schedule.first, schedule.second, StrategyOf(name)), ResnetTrialModel());
      ExpectSame(trial, Train(trial, {.steps = kResnetSteps}), alone);
    }
  }
}

// With two microbatches a step, a slot of the last stage holds inputs of its first chunk only, 4 x 8 x 8. An evaluation
// receives inputs of its second chunk there, 32 x 4 x 4.
TEST(Pipelines, AnEvaluationMayReceiveMoreThanAStep) {
  Model model;
  Resnet& m = *model.mutable_resnet();
  m.set_depth(50), m.set_width(4), m.set_image(kImage), m.set_classes(kClasses);
  model = *models::Resolve(model);
  const Choose choose = [](::muster::Train& train) {
    By(PIPELINE_SCHEDULE_INTERLEAVED, 2, Single)(train);
    for (const char* unit : {"layer1.0", "layer2.0", "layer2.2"}) train.mutable_pipeline()->add_cut(unit);
  };
  Trial single = OneRank(model, true), trial = OnStages("resnet 50", 2, choose, model, true);
  single.microbatch = trial.microbatch = 4;
  const Leg leg{.steps = 1};
  const Curve expected = Train(single, leg), found = Train(trial, leg);
  ASSERT_EQ(found.losses.size(), 1u);
  EXPECT_NEAR(found.losses[0], expected.losses[0], 5e-6 * expected.losses[0]);
  EXPECT_NEAR(found.evaluation, expected.evaluation, 1e-4 * expected.evaluation);
}

// Without synchronization each rank has its own statistics, and evaluates by those of the first rank of its stage: as
// without a pipeline by those of the first rank.
TEST(Pipelines, EachStageSharesTheStatisticsOfItsFirstRank) {
  Model model = ResnetTrialModel();
  model.mutable_resnet()->set_sync_batch_norm(false);
  for (const std::string& name : kInside) {
    Trial flat = OnTwoStagesOfFour(absl::StrCat(name, ", flat"), StrategyOf(name), model);
    flat.ranks = 4, flat.stages = 1;
    Trial trial = OnTwoStagesOfFour(name, By(PIPELINE_SCHEDULE_1F1B, 1, StrategyOf(name)), model);
    trial.sgd_limit = 1e-5;  // biases begin at zero and are compared with what little they have learned
    ExpectSame(trial, Train(trial, {.steps = kResnetSteps}), Train(flat, {.steps = kResnetSteps}));
  }
}

TEST(Pipelines, NarrowTypesUpdateAsOneRankDoes) {
  for (const auto& [compute, reduce] : {std::pair(DTYPE_BF16, DTYPE_FP32), std::pair(DTYPE_FP16, DTYPE_FP16)}) {
    Trial single = OneRank(LlamaTrialModel(), true);
    single.compute = compute;
    const Curve alone = Train(single), initial = Train(single, {.steps = 0});
    for (const auto& [schedule_name, schedule] : Schedules()) {
      Trial trial = OnStages(absl::StrCat(schedule_name, ", ", Dtype_Name(compute)), 2,
                             By(schedule.first, schedule.second, StrategyOf("full_shard")), LlamaTrialModel(), true);
      trial.ranks = 4, trial.compute = compute, trial.reduce = reduce;
      const double error = UpdateError(Train(trial), alone, initial);
      EXPECT_LE(error, 0.05) << trial.name;
      EXPECT_GT(error, 0) << trial.name;
    }
  }
}

// A loss scale at which gradients overflow: in a stage, or in none of the stages that a message passes. All stages skip
// the same steps and lower it alike.
TEST(Pipelines, EveryStageSkipsTheStepsThatOverflow) {
  for (const std::string name : {"ddp", "full_shard"}) {
    for (const bool ahead : {false, true}) {
      Trial trial = OnStages(name, 2, By(PIPELINE_SCHEDULE_1F1B, 1, StrategyOf(name)), LlamaTrialModel(), false);
      trial.ranks = 4, trial.compute = DTYPE_FP16, trial.loss_scale = 0x1p26, trial.ahead = ahead;
      trial.set = [=](Config& c) { c.decide_on_device = c.streams = ahead; };
      const Curve seen = Train(trial);  // which compares the ranks
      ASSERT_EQ(seen.loss_scales.size(), static_cast<size_t>(kSteps)) << name;
      EXPECT_EQ(seen.loss_scales.front(), 0x1p26) << name;
      EXPECT_LT(seen.loss_scales.back(), 0x1p26) << name << ": nothing overflowed";
      EXPECT_GT(seen.loss_scales.back(), 0x1p10) << name;
      EXPECT_TRUE(std::isfinite(seen.norms.back())) << name;
    }
  }
}

TEST(Pipelines, DropAsOneRankDoes) {
  const auto dropping = [](const Choose& choose) -> Choose {
    return [=](T& train) {
      choose(train);
      Dropout& dropout = *train.mutable_dropout();
      dropout.set_embedding(0.1), dropout.set_attention(0.2), dropout.set_residual(0.1);
    };
  };
  Trial single = OneRank(LlamaTrialModel(), true);
  single.choose = dropping(Single), single.sgd_limit = 3e-6;
  const Curve alone = Train(single);
  for (const auto& [schedule_name, schedule] : Schedules()) {
    for (const std::string& name : kInside) {
      const Trial trial =
          OnTwoStagesOfFour(absl::StrCat(name, ", dropout, ", schedule_name),
                            dropping(By(schedule.first, schedule.second, StrategyOf(name))), LlamaTrialModel());
      ExpectSame(trial, Train(trial), alone);
    }
  }
}

TEST(Pipelines, RecomputingChangesNoBit) {
  for (const Model& model : {LlamaTrialModel(), ResnetTrialModel()}) {
    for (const auto& [schedule_name, schedule] : Schedules()) {
      const Choose choose = By(schedule.first, schedule.second, StrategyOf("full_shard"));
      Trial trial = OnStages(absl::StrCat("recomputed, ", schedule_name), 2, choose, model, true);
      trial.ranks = 4;
      const Leg leg{.steps = kResnetSteps};
      const Curve kept = Train(trial, leg);
      trial.choose = [=](T& train) { choose(train), train.set_activation_checkpointing(true); };
      const Curve again = Train(trial, leg);
      EXPECT_EQ(again.losses, kept.losses) << trial.name;
      EXPECT_EQ(again.state, kept.state) << trial.name;
    }
  }
}

// In the ways of running that a GPU has, on groups that hand out nothing early.
TEST(Pipelines, RunOnStreamsAsOneRankDoes) {
  // Its head borrows the embedding of the other stage.
  const Model model = TrialModel();
  const Curve alone = Train(OneRank(model, true));
  const auto streams = [](Config& c) { c.check_accesses = c.streams = true; };
  const std::vector<std::pair<std::string, std::function<void(Config&)>>> modes = {
      {"host queue", [](Config& c) { c.check_accesses = true; }},
      {"streams", streams},
      {"row programs of GPUs", [](Config& c) { c.device_rows = c.streams = c.decide_on_device = true; }},
  };
  for (const auto& [mode, set] : modes) {
    for (const auto& [schedule_name, schedule] : Schedules()) {
      for (const std::string& name : kInside) {
        Trial trial = OnTwoStagesOfFour(absl::StrCat(name, ", ", schedule_name, ", ", mode),
                                        By(schedule.first, schedule.second, StrategyOf(name)), model);
        trial.adversarial = true, trial.set = set;
        ExpectSame(trial, Train(trial), alone);
      }
    }
  }
  Trial trial = OnTwoStagesOfFour("by step", By(PIPELINE_SCHEDULE_1F1B, 1, StrategyOf("zero 2")), model);
  trial.adversarial = true, trial.set = streams;
  const Curve by_step = Train(trial);
  trial.name = "one step ahead", trial.ahead = true;
  const Curve ahead = Train(trial);
  EXPECT_EQ(ahead.losses, by_step.losses);
  EXPECT_EQ(ahead.state, by_step.state);
}

// The stage in the middle goes back in the slot in which it receives a gradient, and sends what is there.
TEST(Pipelines, WhatIsSentIsNotReceivedOver) {
  const Model model = LlamaTrialModel();
  const Curve alone = Train(OneRank(model, true));
  for (const bool streams : {false, true}) {
    Trial trial = OnStages(streams ? "streams" : "host queue", 3, By(PIPELINE_SCHEDULE_1F1B, 1, Single), model, true);
    trial.adversarial = true;
    trial.set = [=](Config& config) { config.check_accesses = true, config.streams = streams; };
    ExpectSame(trial, Train(trial), alone);
  }
}

// A stage that is frozen as a whole goes back for nothing, and no gradient is sent to it. Of GPT-2 the embedding is
// trained by its use in the head of the other stage alone.
TEST(Pipelines, AFrozenFrontDoesNotGoBack) {
  struct Case {
    Model model;
    std::vector<std::vector<std::string>> freezes;
  };
  const std::vector<Case> cases = {
      {TrialModel(), {{"h.*", "wpe*"}, {"*", "!ln_f*"}, {"wte*", "wpe*", "h.0.*"}}},
      {LlamaTrialModel(), {{"*", "!model.norm.weight"}, {"*embed_tokens*", "*layers.0.*"}}},
  };
  for (const auto& [model, freezes] : cases) {
    for (const std::vector<std::string>& frozen : freezes) {
      const auto freeze = [&frozen = frozen](const Choose& choose) -> Choose {
        return [=](T& train) {
          choose(train);
          train.mutable_freeze()->Assign(frozen.begin(), frozen.end());
        };
      };
      Trial alone = OneRank(model, true);
      alone.choose = freeze(alone.choose);
      const Curve expected = Train(alone);
      for (const auto& [schedule_name, schedule] : Schedules()) {
        for (const std::string& name : kInside) {
          const Trial trial = OnTwoStagesOfFour(absl::StrCat(name, ", ", schedule_name, ", frozen ", frozen[0]),
                                                freeze(By(schedule.first, schedule.second, StrategyOf(name))), model);
          ExpectSame(trial, Train(trial), expected);
        }
      }
    }
  }
}

TEST(Pipelines, OffloadingTrainsAsOneRankDoes) {
  const Model model = TrialModel();
  const Curve expected = Train(OneRank(model, true));
  for (const bool parameters : {false, true}) {
    for (const auto& [schedule_name, schedule] : Schedules()) {
      for (const std::string& name : {std::string("full_shard"), std::string("zero 3"), std::string("hybrid")}) {
        const Choose choose = By(schedule.first, schedule.second, StrategyOf(name));
        const Trial trial = OnTwoStagesOfFour(
            absl::StrCat(name, ", ", schedule_name, ", offloaded", parameters ? " with parameters" : ""),
            [=](T& train) {
              choose(train);
              train.mutable_offload()->set_optimizer(true), train.mutable_offload()->set_parameters(parameters);
            },
            model);
        ExpectSame(trial, Train(trial), expected);
      }
    }
  }
}

// A front without a backward, and a head that goes back for the stage before it alone: also where it adds to the
// gradient of an embedding of that stage.
TEST(Pipelines, OffloadingAStageThatTrainsNothingTrainsAsOneRankDoes) {
  struct Case {
    std::vector<std::string> freeze;
    std::string cut;
  };
  const std::vector<Case> cases = {
      {{"wte*", "wpe*", "h.0.*"}, "h.1"}, {{"wte*", "ln_f*"}, "head"}, {{"ln_f*"}, "head"}};
  for (const Case& test : cases) {
    const auto freeze = [&test](const Choose& choose) -> Choose {
      return [=](T& train) {
        choose(train);
        train.mutable_freeze()->Assign(test.freeze.begin(), test.freeze.end());
      };
    };
    Trial alone = OneRank(TrialModel(), true);
    alone.choose = freeze(alone.choose);
    const Curve expected = Train(alone);
    for (const std::string name : {"single", "ddp", "zero 2", "full_shard", "hybrid"}) {
      for (const bool parameters : {false, true}) {
        if (parameters && name != "full_shard" && name != "hybrid") continue;
        const Choose choose =
            By(PIPELINE_SCHEDULE_1F1B, 1, freeze(name == "single" ? Choose(Single) : StrategyOf(name)));
        Trial trial = OnTwoStagesOfFour(
            absl::StrCat(name, ", cut at ", test.cut, ", offloaded", parameters ? " with parameters" : ""),
            [=, cut = test.cut](T& train) {
              choose(train);
              train.mutable_pipeline()->add_cut(cut);
              train.mutable_offload()->set_optimizer(true), train.mutable_offload()->set_parameters(parameters);
            },
            TrialModel());
        if (name == "single") trial.ranks = 2;
        ExpectSame(trial, Train(trial), expected);
      }
    }
  }
}

// Every stage goes on from what one rank left, and one rank from what the stages left.
TEST(Pipelines, GoOnFromAnyMeshToAnyOther) {
  const Model model = LlamaTrialModel();
  const Trial single = OneRank(model, false);
  const Curve whole = Train(single);
  constexpr int kHalf = kSteps / 2;
  Trial two = OnStages("two stages", 2, By(PIPELINE_SCHEDULE_1F1B, 1, StrategyOf("full_shard")), model, false);
  two.ranks = 4;
  const Trial four = OnStages("four stages", 4, By(PIPELINE_SCHEDULE_GPIPE, 1, Single), model, false);
  for (const auto& [from, to] : {std::pair(two, single), std::pair(single, four), std::pair(four, two)}) {
    const Curve half = Train(from, {.steps = kHalf});
    ExpectSameWeights(to, Train(to, {.from = &half, .first = kHalf, .steps = kHalf}), whole);
  }
}

}  // namespace
}  // namespace muster::engine
