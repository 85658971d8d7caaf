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
  Model model = LlamaTrialModel();
  model.mutable_llama()->set_heads(4), model.mutable_llama()->set_inner(4 * 10);
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
  Model llama = LlamaTrialModel();
  llama.mutable_llama()->set_heads(4), llama.mutable_llama()->set_inner(4 * 10);
  for (const Model& model : {DividedModel(), llama}) {
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

}  // namespace
}  // namespace muster::engine
