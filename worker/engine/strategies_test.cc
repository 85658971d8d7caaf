// Every strategy gives the same losses, gradient norms and weights as one rank.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/engine/strategy_trials_test.h"
#include "worker/tasks/language_model.h"

namespace muster::engine {
namespace {

void TrainsAsOneDoes(bool sgd, const Model& model, double sgd_limit, const std::vector<uint32_t>& worlds) {
  const Curve alone = Train({.name = "single", .choose = Single, .sgd = sgd, .model = model});
  for (const auto& [name, choose] : Strategies()) {
    for (const uint32_t ranks : worlds) {
      if (name.starts_with("hybrid") && !name.ends_with("one") && ranks % 2 != 0) continue;
      const uint32_t share = (kSequences + ranks - 1) / ranks;
      for (const uint32_t parts : {1u, 3u}) {
        const Trial trial{.name = absl::StrCat(name, ", ", ranks, " ranks, accumulation ", parts),
                          .choose = choose,
                          .ranks = ranks,
                          .microbatch = (share + parts - 1) / parts,
                          .sgd = sgd,
                          .model = model,
                          .sgd_limit = sgd_limit};
        ExpectSame(trial, Train(trial), alone);
      }
    }
  }
}

TEST(Strategies, TrainAsOneRankDoesWithAdamW) { TrainsAsOneDoes(false, TrialModel(), 1e-6, {1, 2, 3, 4}); }
TEST(Strategies, TrainAsOneRankDoesWithSgd) { TrainsAsOneDoes(true, TrialModel(), 1e-6, {1, 2, 3, 4}); }
// Its smallest matrices are a third of GPT-2's, and so is what their rounding is compared with.
TEST(Strategies, TrainALlamaAsOneRankDoes) { TrainsAsOneDoes(true, LlamaTrialModel(), 3e-6, {4}); }

// A rank that never updates has an error of 1. Modes.Bf16UpdatesAsOneRankDoes has the whole table in bf16.
TEST(Strategies, Bf16UpdatesAlmostAsFp32) {
  Trial trial{.name = "fp32", .choose = Strategies()[0].second, .ranks = 3, .microbatch = 2, .sgd = true};
  const Curve full = Train(trial), initial = Train(trial, {.steps = 0});
  for (const auto& [compute, reduce] : std::vector<std::pair<Dtype, Dtype>>{
           {DTYPE_BF16, DTYPE_FP32}, {DTYPE_FP32, DTYPE_BF16}, {DTYPE_BF16, DTYPE_BF16}}) {
    trial.name = absl::StrCat(Dtype_Name(compute), ", reduced in ", Dtype_Name(reduce));
    trial.compute = compute, trial.reduce = reduce;
    const double error = UpdateError(Train(trial), full, initial);
    EXPECT_LE(error, 0.05) << trial.name;
    EXPECT_GT(error, 1e-4) << trial.name << ": it was not in bf16";
  }
}

TEST(Strategies, RecomputingChangesNoBit) {
  Trial trial{.name = "single", .choose = Single, .microbatch = 3};
  const Curve kept = Train(trial);
  trial.choose = [](::muster::Train& train) { Single(train), train.set_activation_checkpointing(true); };
  const Curve again = Train(trial);
  EXPECT_EQ(again.losses, kept.losses);
  EXPECT_EQ(again.weights, kept.weights);
}

// Each strategy resumes from the state of the next one in the list, on another number of ranks.
TEST(Strategies, GoOnFromWhatAnotherLeft) {
  for (const bool sgd : {false, true}) {
    const Curve alone = Train({.name = "single", .choose = Single, .sgd = sgd});
    const auto& all = Strategies();
    for (size_t i = 0; i < all.size(); ++i) {
      const auto& [name, choose] = all[i];
      const auto& [next, then] = all[(i + 7) % all.size()];
      const Trial first{.name = name, .choose = choose, .ranks = 2, .microbatch = 4, .sgd = sgd};
      const Trial second{.name = name + ", then " + next, .choose = then, .ranks = 4, .microbatch = 1, .sgd = sgd};
      const Curve half = Train(first, {.steps = kSteps / 2});
      Curve rest = Train(second, {.from = &half, .first = kSteps / 2, .steps = kSteps / 2});
      rest.losses.insert(rest.losses.begin(), half.losses.begin(), half.losses.end());
      rest.norms.insert(rest.norms.begin(), half.norms.begin(), half.norms.end());
      ExpectSame(second, rest, alone);
    }
  }
}

TEST(Strategies, EqualRunsAreBitEqual) {
  const Trial trial{.name = "full_shard", .choose = FsdpOf(RESHARD_FULL_SHARD), .ranks = 3, .microbatch = 1};
  EXPECT_EQ(Train(trial).weights, Train(trial).weights);
}

TEST(Strategies, APartHasNoLogits) {
  const Trial trial{.name = "full_shard", .choose = FsdpOf(RESHARD_FULL_SHARD), .ranks = 2};
  const Groups groups(2, 2);
  const ::muster::Train train = MakeTrain(trial);
  Config config = Configure(train, *models::MakeInventory(train.model()), 2, 1)->config;
  config.groups = groups.of[1];
  const std::vector<uint32_t> tokens = {1, 2};
  const auto engine = Engine::Create(config).value();
  EXPECT_EQ(tasks::NextToken(engine.get()).Logits(tokens).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace muster::engine
