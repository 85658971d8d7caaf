// Ranks whose sums over replicas travel compressed.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/engine/strategy_trials_test.h"

namespace muster::engine {
namespace {

using SetCompression = std::function<void(Compression&)>;

void TopKOf(Compression& compression, double ratio) {
  TopK& top_k = *compression.mutable_top_k();
  top_k.set_ratio(ratio), top_k.set_selection(SELECTION_EXACT), top_k.set_values(SENT_VALUES_FP32);
}
const SetCompression kEverything = [](Compression& c) { TopKOf(c, 1); };
const SetCompression kTenth = [](Compression& c) { TopKOf(c, 0.1); };
const SetCompression kPowerSgd = [](Compression& c) { c.mutable_power_sgd()->set_rank(2); };
const SetCompression kInt8 = [](Compression& c) { c.mutable_int8()->set_block(32); };

struct Case {
  uint32_t ranks, on_node;  // on_node 0: one level
};

Trial Compressed(const std::string& strategy, const SetCompression& set, Case on) {
  Trial trial{.name = absl::StrCat(strategy, ", ", on.ranks, " ranks, ", on.on_node, " on a node"),
              .ranks = on.ranks,
              .sgd = true,
              .set = [](Config& config) { config.check_accesses = true; },
              .ranks_on_node = on.on_node};
  for (const auto& [name, choose] : Strategies()) {
    if (name != strategy) continue;
    trial.choose = [set, choose = choose](::muster::Train& train) {
      choose(train);
      set(*train.mutable_communication()->mutable_compression());
    };
  }
  EXPECT_TRUE(trial.choose != nullptr) << strategy;
  return trial;
}

// With every element sent in fp32, sums are exact.
TEST(Compression, SendingEverythingTrainsAsOneRankDoes) {
  const Curve alone = Train(OneRank(TrialModel(), true));
  for (const auto& [strategy, on] : std::vector<std::pair<std::string, Case>>{{"ddp", {2, 0}},
                                                                              {"ddp", {4, 0}},
                                                                              {"ddp", {4, 2}},
                                                                              {"ddp", {6, 3}},
                                                                              {"hybrid", {4, 0}},
                                                                              {"hybrid", {8, 4}}}) {
    for (const bool adversarial : {false, true}) {
      Trial trial = Compressed(strategy, kEverything, on);
      trial.adversarial = adversarial, trial.microbatch = adversarial ? 1 : kSequences;
      ExpectSame(trial, Train(trial), alone);
    }
  }
}

TEST(Compression, SendingEverythingOnStreamsAndByAdamW) {
  const Curve alone = Train(OneRank(TrialModel(), false));
  for (const Case on : {Case{4, 0}, Case{4, 2}}) {
    Trial trial = Compressed("ddp", kEverything, on);
    trial.sgd = false, trial.ahead = true, trial.microbatch = 1;
    trial.set = [](Config& config) { config.check_accesses = config.streams = true; };
    ExpectSame(trial, Train(trial), alone);
  }
}

TEST(Compression, SendingEverythingInAPipeline) {
  const Curve alone = Train(OneRank(TrialModel(), true));
  Trial trial = Compressed("ddp", kEverything, {4, 0});
  trial.stages = 2, trial.microbatch = 2;
  trial.choose = [choose = trial.choose](::muster::Train& train) {
    choose(train);
    train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_1F1B);
  };
  ExpectSame(trial, Train(trial), alone);
}

struct Kind {
  std::string name;
  SetCompression set;
  double off;  // most relative error of the losses of 12 steps
};
std::vector<Kind> Kinds() {
  return {{"top_k 1/10", kTenth, 0.01}, {"power_sgd", kPowerSgd, 0.01}, {"int8", kInt8, 1e-4}};
}

// Ranks have the same weights, which Train checks; they learn about what exact sums learn, but not just that.
TEST(Compression, LearnsAboutTheSame) {
  const Curve alone = Train(OneRank(TrialModel(), true));
  for (const Kind& kind : Kinds()) {
    for (const auto& [strategy, on] :
         std::vector<std::pair<std::string, Case>>{{"ddp", {4, 0}}, {"ddp", {6, 3}}, {"hybrid", {4, 0}}}) {
      for (const bool streams : {false, true}) {
        Trial trial = Compressed(strategy, kind.set, on);
        trial.name += ", " + kind.name;
        trial.adversarial = !streams;
        trial.set = [streams](Config& config) { config.check_accesses = true, config.streams = streams; };
        const Curve seen = Train(trial);
        EXPECT_LT(Relative(seen.losses, alone.losses), kind.off) << trial.name;
        EXPECT_GT(Relative(seen.losses, alone.losses), 1e-7) << trial.name << ": was not compressed";
      }
    }
  }
}

// What ranks keep is part of their state: a run in two legs has the bits of one.
TEST(Compression, GoesOnToTheSameBits) {
  for (const Kind& kind : Kinds()) {
    for (const bool corrects : {false, true}) {
      if (corrects && kind.name != "top_k 1/10") continue;
      for (const auto& [strategy, on] :
           std::vector<std::pair<std::string, Case>>{{"ddp", {4, 0}}, {"ddp", {4, 2}}, {"hybrid", {4, 0}}}) {
        Trial trial = Compressed(strategy, kind.set, on);
        trial.choose = [corrects, choose = trial.choose](::muster::Train& train) {
          choose(train);
          if (!corrects) return;
          train.mutable_optimizer()->set_weight_decay(0);
          train.mutable_communication()->mutable_compression()->mutable_top_k()->set_momentum_correction(true);
        };
        const Curve whole = Train(trial), first = Train(trial, {.steps = 5}),
                    second = Train(trial, {.from = &first, .first = 5, .steps = kSteps - 5});
        for (int step = 5; step < kSteps; ++step) {
          EXPECT_EQ(second.losses[static_cast<size_t>(step - 5)], whole.losses[static_cast<size_t>(step)])
              << trial.name << " " << kind.name;
        }
        EXPECT_EQ(second.weights, whole.weights) << trial.name << " " << kind.name;
        const size_t kept = whole.state.size();
        EXPECT_GT(kept, 2 * whole.weights.size()) << "residuals are state";
        // And without what was kept it has not.
        Curve forgetful = first;
        for (auto& [name, values] : forgetful.state) {
          if (name.find("of replica") != std::string::npos) std::fill(values.begin(), values.end(), 0.0f);
        }
        EXPECT_NE(Train(trial, {.from = &forgetful, .first = 5, .steps = kSteps - 5}).weights, whole.weights);
      }
    }
  }
}

// The first gradient of each A is zero, since B begins with zeros; nothing else moves A without weight decay.
TEST(Compression, TrainsBothFactorsOfAdapters) {
  for (const auto& [strategy, on] :
       std::vector<std::pair<std::string, Case>>{{"ddp", {2, 0}}, {"ddp", {4, 2}}, {"hybrid", {4, 0}}}) {
    Trial trial = Compressed(strategy, kPowerSgd, on);
    trial.choose = [choose = trial.choose](::muster::Train& train) {
      choose(train);
      train.mutable_lora()->set_rank(3), train.mutable_lora()->set_alpha(6);
      train.mutable_optimizer()->set_weight_decay(0);
    };
    const Curve whole = Train(trial), one = Train(trial, {.steps = 1});
    for (const int first : {1, 5}) {
      const Curve before = Train(trial, {.steps = first}),
                  after = Train(trial, {.from = &before, .first = first, .steps = kSteps - first});
      EXPECT_EQ(after.weights, whole.weights) << trial.name << ", resumed after " << first;
    }
    int factors = 0;
    for (const auto& [name, values] : whole.weights) {
      if (name.find(".lora_") == std::string::npos) continue;
      EXPECT_NE(values, one.weights.at(name)) << trial.name << " " << name;
      ++factors;
    }
    EXPECT_GT(factors, 0);
  }
}

}  // namespace
}  // namespace muster::engine
