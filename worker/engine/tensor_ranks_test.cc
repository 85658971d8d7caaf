// Ranks that compute each unit together train as one rank does. Mirrored tensors are compared bit by bit between them
// (Join, in strategy_trials_test.h).
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/engine/strategy_trials_test.h"

namespace muster::engine {
namespace {

using T = ::muster::Train;

// The head borrows the embedding; two and four ranks divide the vocabulary of 61 unevenly.
Model DividedModel() {
  Model model = TrialModel();
  model.mutable_gpt2()->set_heads(4), model.mutable_gpt2()->set_width(40);
  return model;
}

// Two heads share each head of keys and values.
Model DividedLlama() {
  Model model = LlamaTrialModel();
  Llama& m = *model.mutable_llama();
  m.set_heads(4), m.set_key_value_heads(2), m.set_inner(4 * 10);
  return model;
}

Trial Divided(const std::string& name, uint32_t tensor, const Choose& choose, bool sgd) {
  return {.name = name,
          .choose = choose,
          .ranks = tensor,
          .microbatch = 2,
          .sgd = sgd,
          .set = [](Config& config) { config.check_accesses = true; },
          .model = DividedModel(),
          .sgd_limit = 5e-6,
          // Each product is summed in another order, and AdamW divides by the roots of small second moments.
          .adamw_limit = 3e-5,
          .tensor = tensor};
}

TEST(TensorRanks, TrainAsOneRankDoes) {
  for (const bool sgd : {true, false}) {
    const Curve expected = Train(OneRank(DividedModel(), sgd));
    for (const uint32_t tensor : {2u, 4u}) {
      for (const bool sequence : {false, true}) {
        const auto choose = [=](T& train) {
          Single(train);
          train.mutable_parallel()->set_sequence_parallel(sequence);
        };
        const Trial trial =
            Divided(absl::StrCat(tensor, sequence ? " by tokens" : "", sgd ? " sgd" : ""), tensor, choose, sgd);
        ExpectSame(trial, Train(trial), expected);
      }
    }
  }
}

// Two heads share each head of keys and values, or all do.
TEST(TensorRanks, TrainLlamaAsOneRankDoes) {
  Model model = DividedLlama();
  for (const uint32_t shared : {2u, 1u}) {
    model.mutable_llama()->set_key_value_heads(shared);
    const Curve expected = Train(OneRank(model, true));
    for (const bool sequence : {false, true}) {
      Trial trial = Divided(absl::StrCat(shared, " heads of keys", sequence ? ", by tokens" : ""), 2, Single, true);
      trial.choose = [=](T& train) {
        Single(train);
        train.mutable_parallel()->set_sequence_parallel(sequence);
      };
      trial.model = model;
      ExpectSame(trial, Train(trial), expected);
    }
  }
}

TEST(TensorRanks, TrainInsideEveryStrategyAndPipeline) {
  const Curve expected = Train(OneRank(DividedModel(), true));
  for (const auto& [name, strategy] : Strategies()) {
    for (const uint32_t stages : {1u, 2u}) {
      Trial trial = Divided(absl::StrCat(name, " on ", stages), 2, strategy, true);
      trial.stages = stages;
      trial.ranks = 2 * stages * (name.starts_with("hybrid") ? 4 : 2);
      trial.choose = [=](T& train) {
        strategy(train);
        if (stages > 1) train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_1F1B);
      };
      ExpectSame(trial, Train(trial), expected);
    }
  }
}

// Each backward of a block in two halves, the second of which exchanges nothing and comes later.
TEST(TensorRanks, TrainByHalvesOfBackwardsAsOneRankDoes) {
  for (const Model& model : {DividedModel(), DividedLlama()}) {
    const Curve expected = Train(OneRank(model, true));
    for (const uint32_t chunks : {1u, 2u}) {
      for (const bool sequence : {false, true}) {
        const auto choose = [=](T& train) {
          Single(train);
          train.mutable_parallel()->set_sequence_parallel(sequence);
          train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_ZERO_BUBBLE);
          train.mutable_pipeline()->set_chunks(chunks);
        };
        Trial trial = Divided(
            absl::StrCat(model.has_gpt2() ? "gpt2, " : "llama, ", chunks, " chunks", sequence ? ", by tokens" : ""), 2,
            choose, true);
        trial.model = model, trial.microbatch = 1, trial.stages = 2, trial.ranks = 4;
        std::atomic<int> weights = 0;
        trial.set = [&](Config& config) {
          config.check_accesses = true;
          for (const Op& op : config.schedule.ops) weights += op.kind == OpKind::kBackwardWeights;
        };
        ExpectSame(trial, Train(trial), expected);
        EXPECT_EQ(weights.load(), 2 * 3 * 7)
            << trial.name << ": on two tensor ranks, of three blocks and seven microbatches";
      }
    }
  }
}

// Two stages of two shards of two ranks, in ten cases, in which each schedule, family, optimizer and division of the
// tokens meets each of the others.
TEST(TensorRanks, TrainInEveryScheduleOfAPipeline) {
  // Some gradients of Llama are as small as the default epsilon, where AdamW makes updates of their rounding.
  const auto rounded = [](const Choose& choose, bool sgd) -> Choose {
    return [=](T& train) {
      choose(train);
      if (!sgd) train.mutable_optimizer()->mutable_adamw()->set_eps(1e-6);
    };
  };
  for (const Model& model : {DividedModel(), DividedLlama()}) {
    Curve expected[2];
    for (const bool sgd : {false, true}) {
      Trial alone = OneRank(model, sgd);
      alone.choose = rounded(Single, sgd);
      expected[sgd] = Train(alone);
    }
    const size_t family = model.has_gpt2() ? 0 : 1;
    for (size_t s = 0; s < Schedules().size(); ++s) {
      const auto& [name, schedule] = Schedules()[s];
      const bool sgd = (s + family) % 2 == 0, by_tokens = (s / 2 + family) % 2 == 0;
      const Choose choose = By(schedule.first, schedule.second, StrategyOf("full_shard"));
      const Choose divided = [=](T& train) {
        choose(train);
        train.mutable_parallel()->set_sequence_parallel(by_tokens);
      };
      Trial trial = Divided(absl::StrCat(model.has_gpt2() ? "gpt2, " : "llama, ", name, sgd ? ", sgd" : ", adamw",
                                         by_tokens ? ", by tokens" : ""),
                            2, rounded(divided, sgd), sgd);
      trial.model = model, trial.stages = 2, trial.ranks = 8, trial.microbatch = 1;
      ExpectSame(trial, Train(trial), expected[sgd]);
    }
  }
}

}  // namespace
}  // namespace muster::engine
