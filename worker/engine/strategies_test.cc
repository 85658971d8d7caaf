// Every strategy gives the same losses, gradient norms and weights as one rank.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/tuning.h"
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

// Parameters are offloaded where a device need not keep them.
bool FreesParameters(const std::string& strategy) {
  return strategy.starts_with("zero 3") || strategy.starts_with("full_shard") ||
         strategy.starts_with("shard_grad_op") || strategy.ends_with("hybrid") || strategy.ends_with("hybrid hold");
}

Choose Offloaded(const Choose& choose, bool parameters) {
  return [=](::muster::Train& train) {
    choose(train);
    train.mutable_offload()->set_optimizer(true), train.mutable_offload()->set_parameters(parameters);
  };
}

// Also with a file, by the queue of devices with streams, and with what ops touch compared with what orders them.
TEST(Strategies, TrainWithWhatIsOffloadedAsOneRankDoes) {
  constexpr Leg kShort{.steps = 6};
  const Curve alone = Train({.name = "single", .choose = Single, .sgd = true}, kShort);
  std::vector<std::pair<std::string, Choose>> all = Strategies();
  all.insert(all.begin(), {"single", Single});
  for (const auto& [name, choose] : all) {
    for (const bool parameters : {false, true}) {
      const uint32_t ranks = name == "single" ? 1 : 4;
      if (parameters && ranks > 1 && !FreesParameters(name)) continue;
      for (const uint32_t microbatch : {1u, kSequences}) {
        Trial trial{
            .name = absl::StrCat(name, parameters ? ", parameters" : "", ", offloaded, microbatch ", microbatch),
            .ranks = ranks,
            .microbatch = microbatch,
            .sgd = true};
        trial.choose = [&, choose = choose](::muster::Train& train) {
          Offloaded(choose, parameters)(train);
          if (microbatch == 1) train.mutable_offload()->set_to(testing::TempDir());
        };
        trial.set = [=](Config& config) { config.check_accesses = true, config.streams = microbatch == 1; };
        ExpectSame(trial, Train(trial, kShort), alone);
      }
    }
  }
}

// AdamW's state lies in as many parts as there are buckets; a checkpoint does not show it.
TEST(Strategies, GoOnFromWhatWasOffloadedAndTheReverse) {
  const Choose full = FsdpOf(RESHARD_FULL_SHARD);
  const Trial kept{.name = "kept", .choose = Strategies()[0].second, .ranks = 2, .microbatch = 2};
  Trial offloaded = kept;
  offloaded.name = "offloaded", offloaded.choose = Offloaded(full, true), offloaded.ranks = 3;
  const Curve alone = Train({.name = "single", .choose = Single});
  for (const auto& [first, second] : {std::pair(kept, offloaded), std::pair(offloaded, kept)}) {
    const Curve half = Train(first, {.steps = kSteps / 2});
    Curve rest = Train(second, {.from = &half, .first = kSteps / 2, .steps = kSteps / 2});
    rest.losses.insert(rest.losses.begin(), half.losses.begin(), half.losses.end());
    rest.norms.insert(rest.norms.begin(), half.norms.begin(), half.norms.end());
    ExpectSame(second, rest, alone);
  }
}

// With the same roundings, and the same steps that overflow and are left out.
TEST(Strategies, OffloadingChangesNothingInNarrowTypes) {
  for (const Dtype compute : {DTYPE_BF16, DTYPE_FP16}) {
    for (const bool adapters : {false, true}) {
      const Choose choose = [=](::muster::Train& train) {
        FsdpOf(RESHARD_FULL_SHARD)(train);
        if (adapters) train.mutable_lora()->set_rank(3), train.mutable_lora()->set_alpha(6);
      };
      Trial trial{.name = absl::StrCat(Dtype_Name(compute), adapters ? ", adapters" : ""), .choose = choose};
      trial.ranks = 3, trial.microbatch = 2, trial.sgd = true;
      trial.compute = trial.reduce = compute;
      trial.loss_scale = 1 << 24;
      const Curve kept = Train(trial, {.steps = 8});
      EXPECT_EQ(compute == DTYPE_FP16, kept.norms.front() == 0) << trial.name << ": skipped";
      for (const bool parameters : {false, true}) {
        trial.choose = Offloaded(choose, parameters);
        const Curve seen = Train(trial, {.steps = 8});
        EXPECT_EQ(seen.loss_scales, kept.loss_scales) << trial.name;
        EXPECT_LE(Relative(seen.losses, kept.losses), 1e-6) << trial.name;
        EXPECT_EQ(seen.norms.front(), kept.norms.front()) << trial.name;
      }
    }
  }
}

Choose Recomputed(const Choose& choose, bool offloaded) {
  return [=](::muster::Train& train) {
    choose(train);
    train.set_activation_checkpointing(true);
    train.mutable_offload()->set_activations(offloaded);
  };
}

void ExpectTheSameBits(const Trial& trial, const Curve& seen, const Curve& expected) {
  EXPECT_EQ(seen.losses, expected.losses) << trial.name;
  EXPECT_EQ(seen.norms, expected.norms) << trial.name;
  EXPECT_EQ(seen.loss_scales, expected.loss_scales) << trial.name;
  EXPECT_EQ(seen.evaluation, expected.evaluation) << trial.name;
  EXPECT_TRUE(seen.state == expected.state) << trial.name << ": weights or state";
}

// Inputs that were in host memory are the same bits. What has left the device becomes NaN, and so does a slot after its
// use; by both queues, and with what ops touch compared with what orders them; also in a file.
TEST(Strategies, TrainWithOffloadedActivationsToTheSameBits) {
  constexpr Leg kShort{.steps = 3};
  std::vector<std::pair<std::string, Choose>> all = Strategies();
  all.insert(all.begin(), {"single", Single});
  for (const auto& [name, choose] : all) {
    for (const bool streams : {false, true}) {
      Trial trial{.name = absl::StrCat(name, ", activations offloaded", streams ? ", streams" : "")};
      trial.ranks = name == "single" ? 1 : 4;
      trial.microbatch = streams ? 1 : kSequences;  // some ranks have an empty microbatch
      trial.set = [=](Config& config) { config.check_accesses = true, config.streams = streams; };
      trial.choose = Recomputed(choose, false);
      const Curve kept = Train(trial, kShort);
      trial.choose = [&, choose = choose](::muster::Train& train) {
        Recomputed(choose, true)(train);
        if (streams) train.mutable_offload()->set_to(testing::TempDir());
      };
      ExpectTheSameBits(trial, Train(trial, kShort), kept);
    }
  }
}

// Beside everything else that is offloaded, in narrow types, and one step ahead.
TEST(Strategies, OffloadedActivationsGoWithWhatElseIsOffloaded) {
  for (const Dtype compute : {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16}) {
    for (const bool parameters : {false, true}) {
      for (const bool ahead : {false, true}) {
        Trial trial{.name =
                        absl::StrCat(Dtype_Name(compute), parameters ? ", parameters" : "", ahead ? ", ahead" : "")};
        trial.ranks = 3, trial.microbatch = 1, trial.ahead = ahead;
        trial.compute = trial.reduce = compute;
        trial.loss_scale = 1 << 24;
        trial.set = [=](Config& config) { config.check_accesses = true, config.streams = ahead; };
        const Choose choose = Offloaded(FsdpOf(RESHARD_FULL_SHARD), parameters);
        trial.choose = Recomputed(choose, false);
        const Curve kept = Train(trial, {.steps = 6});
        trial.choose = Recomputed(choose, true);
        ExpectTheSameBits(trial, Train(trial, {.steps = 6}), kept);
      }
    }
  }
}

// Other shapes, layouts of memory and numbers of units: the inputs of a ResNet's blocks differ in size, and some of its
// units exchange inside their passes.
TEST(Strategies, OffloadedActivationsOfOtherFamiliesAreTheSameBits) {
  for (const Model& model : {LlamaTrialModel(), ResnetTrialModel()}) {
    for (const Dtype compute : {DTYPE_FP32, DTYPE_BF16}) {
      for (const bool portable : {false, true}) {
        Trial trial{.name = absl::StrCat(model.has_llama() ? "llama " : "resnet ", Dtype_Name(compute))};
        trial.ranks = 2, trial.microbatch = 2, trial.compute = compute, trial.model = model;
        trial.set = [=](Config& config) { config.check_accesses = true, config.portable = portable; };
        trial.choose = Recomputed(ZeroStage(2), false);
        const Curve kept = Train(trial, {.steps = 3});
        trial.choose = Recomputed(ZeroStage(2), true);
        ExpectTheSameBits(trial, Train(trial, {.steps = 3}), kept);
      }
    }
  }
}

// Muon rounds the momentum to bf16, so that the last bit of a gradient moves some elements of the update by 2^-8. What
// it does with the same gradients is compared in tests/parity/optimizer_test.cc.
struct WholeLimits {
  double losses, norms, updates;
};
WholeLimits LimitsOf(const std::string& optimizer) {
  return optimizer == "muon" ? WholeLimits{2e-5, 5e-4, 0.015} : WholeLimits{5e-6, 3e-5, 1e-3};
}

void ExpectSameUpdates(const Trial& trial, const Curve& seen, const Curve& expected, const Curve& initial) {
  const WholeLimits limits = LimitsOf(trial.optimizer);
  const double losses = Relative(seen.losses, expected.losses), norms = Relative(seen.norms, expected.norms),
               updates = UpdateError(seen, expected, initial);
  EXPECT_LE(losses, limits.losses) << trial.name;
  EXPECT_LE(norms, limits.norms) << trial.name;
  EXPECT_LE(updates, limits.updates) << trial.name;
  for (const auto& [kind_and_tensor, values] : expected.state) {
    ASSERT_EQ(seen.state.at(kind_and_tensor).size(), values.size()) << trial.name;
    for (const float value : seen.state.at(kind_and_tensor)) {
      ASSERT_TRUE(std::isfinite(value)) << trial.name << ": no rank owns all of " << kind_and_tensor;
    }
  }
}

// Those that update whole tensors, which have one owner each, or are on every rank.
void TrainsWholeTensorsAsOneDoes(const std::string& optimizer, const Model& model, uint32_t ranks) {
  Trial single{.name = optimizer, .choose = Single, .model = model, .optimizer = optimizer};
  const Curve alone = Train(single), initial = Train(single, {.steps = 0});
  for (const auto& [name, choose] : Strategies()) {
    if (name.ends_with("ragged") || name.ends_with("by rows")) continue;  // other placements
    if (name.starts_with("hybrid") && !name.ends_with("one") && ranks % 2 != 0) continue;
    Trial trial = single;
    trial.name = absl::StrCat(optimizer, ", ", name, ", ", ranks, " ranks");
    trial.choose = choose, trial.ranks = ranks, trial.microbatch = 2;
    ExpectSameUpdates(trial, Train(trial), alone, initial);
  }
}
TEST(Strategies, TrainWithMuonAsOneRankDoes) {
  for (const uint32_t ranks : {2u, 3u, 4u}) TrainsWholeTensorsAsOneDoes("muon", TrialModel(), ranks);
  TrainsWholeTensorsAsOneDoes("muon", LlamaTrialModel(), 4);
}

// The same GEMMs of the same matrices, by the bucket and in a file: to the bit, where no norm, which is the sum of
// other parts there, scales gradients, and where microbatches are reduced one by one, or there is one.
TEST(Strategies, OffloadingWholeTensorsChangesNoBit) {
  for (const std::string optimizer : {"muon", "adafactor"}) {
    for (const Choose& choose : {Choose(Single), ZeroStage(1), ZeroStage(3), FsdpOf(RESHARD_FULL_SHARD)}) {
      for (const Dtype compute : {DTYPE_FP32, DTYPE_BF16}) {
        const auto unclipped = [=](bool offloaded) -> Choose {
          return [=](::muster::Train& train) {
            (offloaded ? Offloaded(choose, false) : choose)(train);
            train.mutable_optimizer()->set_clip_norm(1e9);
            if (offloaded && compute == DTYPE_BF16) train.mutable_offload()->set_to(testing::TempDir());
          };
        };
        Trial trial{.name = absl::StrCat(optimizer, ", ", Dtype_Name(compute)), .compute = compute};
        trial.optimizer = optimizer;
        trial.choose = unclipped(false);
        ::muster::Train train;
        choose(train);
        const bool single = train.strategy().has_single();
        trial.ranks = single ? 1 : 3, trial.microbatch = single ? kSequences : 2;
        const Curve kept = Train(trial, {.steps = 6});
        trial.choose = unclipped(true);
        trial.set = [=](Config& config) { config.check_accesses = true, config.streams = compute == DTYPE_BF16; };
        const Curve seen = Train(trial, {.steps = 6});
        EXPECT_EQ(seen.losses, kept.losses) << trial.name;
        EXPECT_TRUE(seen.state == kept.state) << trial.name << ": weights or state";
        EXPECT_NE(seen.losses.front(), seen.losses.back()) << trial.name;
      }
    }
  }
}

TEST(Strategies, TrainWithAdafactorAsOneRankDoes) {
  for (const uint32_t ranks : {2u, 3u, 4u}) TrainsWholeTensorsAsOneDoes("adafactor", TrialModel(), ranks);
  TrainsWholeTensorsAsOneDoes("adafactor", LlamaTrialModel(), 4);
}

// Only adapters and one norm are trained: their state is all there is.
TEST(Strategies, TrainAdaptersWithMuonAsOneRankDoes) {
  const auto adapted = [](const Choose& choose) -> Choose {
    return [=](::muster::Train& train) {
      choose(train);
      train.mutable_lora()->set_rank(3), train.mutable_lora()->set_alpha(6);
      train.add_freeze("!ln_f.*");
    };
  };
  Trial single{.name = "muon, adapters", .choose = adapted(Single), .optimizer = "muon"};
  const Curve alone = Train(single), initial = Train(single, {.steps = 0});
  for (const Choose& choose : {ZeroStage(1), ZeroStage(3), FsdpOf(RESHARD_FULL_SHARD)}) {
    Trial trial = single;
    trial.choose = adapted(choose), trial.ranks = 3, trial.microbatch = 1;
    const Curve seen = Train(trial);
    ExpectSameUpdates(trial, seen, alone, initial);
    for (const auto& [tensor, values] : seen.weights) {
      const bool trained = models::IsAdapter(tensor) || tensor.starts_with("ln_f.");
      EXPECT_EQ(values == initial.weights.at(tensor), !trained) << tensor;
      EXPECT_EQ(seen.state.contains("momentum_buffer " + tensor), models::IsAdapter(tensor)) << tensor;
      EXPECT_EQ(seen.state.contains("exp_avg " + tensor), trained && !models::IsAdapter(tensor)) << tensor;
    }
  }
}

// A rank that never updates has an error of 1. Modes.NarrowTypesUpdateAsOneRankDoes has the whole table. fp16 rounds to
// 11 bits, bf16 to 8.
TEST(Strategies, NarrowTypesUpdateAlmostAsFp32) {
  Trial trial{.name = "fp32", .choose = Strategies()[0].second, .ranks = 3, .microbatch = 2, .sgd = true};
  const Curve full = Train(trial), initial = Train(trial, {.steps = 0});
  for (const auto& [compute, reduce] : std::vector<std::pair<Dtype, Dtype>>{{DTYPE_BF16, DTYPE_FP32},
                                                                            {DTYPE_FP32, DTYPE_BF16},
                                                                            {DTYPE_BF16, DTYPE_BF16},
                                                                            {DTYPE_FP16, DTYPE_FP32},
                                                                            {DTYPE_FP32, DTYPE_FP16},
                                                                            {DTYPE_FP16, DTYPE_FP16}}) {
    trial.name = absl::StrCat(Dtype_Name(compute), ", reduced in ", Dtype_Name(reduce));
    trial.compute = compute, trial.reduce = reduce;
    const double error = UpdateError(Train(trial), full, initial);
    const bool fp16 = compute == DTYPE_FP16 || reduce == DTYPE_FP16;
    EXPECT_LE(error, fp16 ? 0.01 : 0.05) << trial.name;
    EXPECT_GT(error, fp16 ? 1e-5 : 1e-4) << trial.name << ": it was not in a narrow type";
  }
}

// Adapters of every linear layer, one norm trained beside them, and the rest frozen: as on one rank, and what is frozen
// keeps every bit.
TEST(Strategies, TrainAdaptersAsOneRankDoes) {
  for (const Model& model : {TrialModel(), LlamaTrialModel()}) {
    const bool llama = model.has_llama();
    const auto adapted = [&](const Choose& choose) -> Choose {
      return [=](::muster::Train& train) {
        choose(train);
        train.mutable_lora()->set_rank(3), train.mutable_lora()->set_alpha(6);
        train.add_freeze(llama ? "!model.norm.weight" : "!ln_f.*");
      };
    };
    Trial single{.name = "single", .choose = adapted(Single), .sgd = true, .model = model, .sgd_limit = 3e-6};
    const Curve alone = Train(single), initial = Train(single, {.steps = 0});
    for (const auto& [name, choose] : Strategies()) {
      Trial trial = single;
      trial.name = absl::StrCat(name, llama ? ", llama" : "", ", adapters");
      trial.choose = adapted(choose), trial.ranks = 4, trial.microbatch = 1;
      const Curve seen = Train(trial);
      ExpectSame(trial, seen, alone);
      for (const auto& [tensor, values] : seen.weights) {
        const bool trained = models::IsAdapter(tensor) || tensor == "model.norm.weight" || tensor.starts_with("ln_f.");
        EXPECT_EQ(values == initial.weights.at(tensor), !trained) << trial.name << ": " << tensor;
      }
    }
  }
}

// Weights that are frozen have no master copy under compute: bf16. They are what LibTorch rounds the fp32 ones to, and
// stay so; the losses of all strategies are those of one rank, up to the order in which gradients in bf16 are added.
TEST(Strategies, FrozenWeightsAreKeptInBf16) {
  const auto adapted = [](const Choose& choose) -> Choose {
    return [=](::muster::Train& train) {
      choose(train);
      train.mutable_lora()->set_rank(3), train.mutable_lora()->set_alpha(6);
      train.add_freeze("!ln_f.*");
    };
  };
  Trial single{.name = "single", .choose = adapted(Single), .sgd = true};
  const Curve wide = Train(single, {.steps = 0});
  EXPECT_EQ(wide.in_bf16, 0u);
  single.compute = DTYPE_BF16;
  const Curve alone = Train(single), initial = Train(single, {.steps = 0});
  EXPECT_GT(alone.in_bf16, 0u);
  const auto& all = Strategies();
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& [name, choose] = all[i];
    Trial trial = single;
    trial.name = name + ", frozen in bf16", trial.choose = adapted(choose), trial.ranks = 4, trial.microbatch = 1;
    const Curve half = Train(trial, {.steps = kSteps / 2});
    // Goes on with another strategy.
    trial.choose = adapted(all[(i + 7) % all.size()].second), trial.ranks = 2, trial.microbatch = 4;
    const Curve seen = Train(trial, {.from = &half, .first = kSteps / 2, .steps = kSteps / 2});
    EXPECT_LE(Relative({half.losses[0]}, {alone.losses[0]}), 5e-6) << trial.name << ": the same weights";
    std::vector<double> losses = half.losses;
    losses.insert(losses.end(), seen.losses.begin(), seen.losses.end());
    EXPECT_LE(Relative(losses, alone.losses), 1e-3) << trial.name;
    EXPECT_LE(UpdateError(seen, alone, initial), 0.05) << trial.name;
    for (const auto& [tensor, values] : seen.weights) {
      if (models::IsAdapter(tensor) || tensor.starts_with("ln_f.")) continue;
      const std::vector<float>& from = wide.weights.at(tensor);
      ASSERT_EQ(values.size(), from.size());
      for (size_t e = 0; e < from.size(); ++e) {
        ASSERT_EQ(values[e], static_cast<float>(c10::BFloat16(from[e]))) << trial.name << ": " << tensor << " " << e;
      }
    }
  }
}

// Without a master copy: one rank's losses, and its updates up to the rounding of every step, with and without
// offloading, also where another strategy goes on.
TEST(Strategies, TrainWeightsThatAreStoredInBf16) {
  Trial single{.name = "single", .choose = Single, .sgd = true};
  single.compute = DTYPE_BF16;
  const Curve master = Train(single);
  single.params = DTYPE_BF16;
  const Curve alone = Train(single), initial = Train(single, {.steps = 0});
  EXPECT_EQ(master.in_bf16, 0u);
  EXPECT_GT(UpdateError(alone, master, initial), 1e-3) << "nothing was rounded";
  size_t elements = 0;
  for (const auto& [tensor, values] : alone.weights) {
    elements += values.size();
    for (const float value : values) ASSERT_EQ(value, static_cast<float>(c10::BFloat16(value))) << tensor;
  }
  EXPECT_EQ(alone.in_bf16, elements);
  const auto& all = Strategies();
  for (size_t i = 0; i < all.size(); ++i) {
    const auto offloaded = [&](const Choose& choose) -> Choose {
      return [=](::muster::Train& train) {
        choose(train);
        if (i % 3 == 1) train.mutable_offload()->set_optimizer(true);
      };
    };
    Trial trial = single;
    trial.name = all[i].first + ", weights in bf16", trial.ranks = 4, trial.microbatch = 1;
    trial.choose = offloaded(all[i].second);
    const Curve half = Train(trial, {.steps = kSteps / 2});
    trial.choose = offloaded(all[(i + 7) % all.size()].second), trial.ranks = 2, trial.microbatch = 4;
    const Curve seen = Train(trial, {.from = &half, .first = kSteps / 2, .steps = kSteps / 2});
    EXPECT_GT(seen.in_bf16, 0u) << trial.name;
    EXPECT_LE(Relative({half.losses[0]}, {alone.losses[0]}), 5e-6) << trial.name << ": the same weights";
    std::vector<double> losses = half.losses;
    losses.insert(losses.end(), seen.losses.begin(), seen.losses.end());
    EXPECT_LE(Relative(losses, alone.losses), 3e-3) << trial.name;
    EXPECT_LE(UpdateError(seen, alone, initial), 0.1) << trial.name;
  }
}

// fp16 cannot hold what is larger than 65504 or smaller than 6e-8: a copy in fp32 stays.
TEST(Strategies, FrozenWeightsAreKeptInFp32UnderFp16) {
  Trial trial{.name = "fp16", .choose = Strategies()[0].second, .ranks = 2, .compute = DTYPE_FP16};
  trial.choose = [choose = trial.choose](::muster::Train& train) {
    choose(train);
    train.add_freeze("wte.*");
  };
  const Curve seen = Train(trial, {.steps = 2});
  trial.compute = DTYPE_FP32;
  EXPECT_EQ(seen.weights.at("wte.weight"), Train(trial, {.steps = 0}).weights.at("wte.weight"));
}

// With a whole unit frozen in front, and one in the middle.
TEST(Strategies, TrainAroundWhatIsFrozenAsOneRankDoes) {
  const auto frozen = [](const Choose& choose) -> Choose {
    return [=](::muster::Train& train) {
      choose(train);
      for (const char* pattern : {"wte.*", "wpe.*", "h.1.*", "h.2.attn.c_attn.weight", "*.ln_1.bias"}) {
        train.add_freeze(pattern);
      }
    };
  };
  Trial single{.name = "single", .choose = frozen(Single)};
  const Curve alone = Train(single);
  for (const auto& [name, choose] : Strategies()) {
    for (const uint32_t ranks : {3u, 4u}) {
      if (name.starts_with("hybrid") && !name.ends_with("one") && ranks % 2 != 0) continue;
      Trial trial = single;
      trial.name = name + ", frozen", trial.choose = frozen(choose), trial.ranks = ranks, trial.microbatch = 1;
      ExpectSame(trial, Train(trial), alone);
    }
  }
}

// The schedule in which every unit goes back, whatever is frozen.
void LetAllGoBack(Config& config, uint32_t ranks) {
  ::muster::Train train = config.train;
  train.clear_freeze();
  Inventory inventory = config.inventory;
  for (Unit& unit : *inventory.mutable_units()) {
    for (Tensor& tensor : *unit.mutable_tensors()) tensor.set_frozen(false);
  }
  config.schedule = Configure(train, inventory, ranks, config.rank)->config.schedule;
  config.unproven = true;  // it has backwards that no one needs
}

// Units before the first one that is trained only go forward, to the same bits: what is dropped, exchanged (also by a
// rank without a sample) and counted in running statistics is the same, and so are the gradients of all others.
TEST(Strategies, AFrozenFrontThatDoesNotGoBackChangesNoBit) {
  struct Case {
    std::string name;
    Model model;
    std::vector<std::string> trained;
  };
  for (const Case& c : {Case{"gpt2", TrialModel(), {"!h.2.*", "!ln_f.*"}},
                        Case{"llama", LlamaTrialModel(), {"!model.layers.2.*", "!model.norm.weight"}},
                        Case{"resnet", ResnetTrialModel(), {"!layer3.*", "!fc.*"}}}) {
    for (const auto& [name, choose] : std::vector<std::pair<std::string, Choose>>{
             {"single", Single}, {"ddp", Strategies()[0].second}, {"zero 1", ZeroStage(1)}}) {
      for (const bool portable : {false, true}) {
        for (const bool recompute : {false, true}) {
          if (name == "ddp" && (portable || recompute)) continue;
          Trial trial{
              .name = absl::StrCat(c.name, ", ", name, portable ? ", portable" : "", recompute ? ", recomputed" : "")};
          trial.model = c.model, trial.ranks = name == "single" ? 1 : 4, trial.microbatch = name == "single" ? 3 : 1;
          trial.choose = [&, choose = choose](::muster::Train& train) {
            choose(train);
            train.add_freeze("*");
            for (const std::string& pattern : c.trained) train.add_freeze(pattern);
            train.set_activation_checkpointing(recompute);
            if (c.model.has_resnet()) return;
            Dropout& dropout = *train.mutable_dropout();
            dropout.set_embedding(0.1), dropout.set_attention(0.2), dropout.set_residual(0.1);
          };
          const auto run = [&](bool all) {
            std::atomic<int> back = 0;
            trial.set = [&](Config& config) {
              config.portable = portable, config.check_accesses = true;
              if (all) LetAllGoBack(config, trial.ranks);
              for (const Op& op : config.schedule.ops) {
                back += op.kind == OpKind::kBackward && op.microbatch == 0 && config.rank == 0 ? 1 : 0;
              }
            };
            Curve curve = Train(trial, {.steps = 4});
            return std::pair(std::move(curve), back.load());
          };
          const auto [seen, back] = run(false);
          const auto [expected, all] = run(true);
          ExpectTheSameBits(trial, seen, expected);
          EXPECT_EQ(back, 2) << trial.name << ": the last layer's and the head's";
          EXPECT_EQ(all, 5) << trial.name;
        }
      }
    }
  }
}

// Where units are gathered and gradients have slots, a schedule of all backwards is another one, so as one rank does.
TEST(Strategies, TrainBehindAFrozenFrontAsOneRankDoes) {
  const auto frozen = [](const Choose& choose, const Model& model) -> Choose {
    return [=](::muster::Train& train) {
      choose(train);
      train.add_freeze("*");
      for (const char* pattern :
           model.has_resnet() ? std::array{"!layer3.*", "!fc.*"} : std::array{"!h.2.*", "!ln_f.*"})
        train.add_freeze(pattern);
    };
  };
  for (const Model& model : {TrialModel(), ResnetTrialModel()}) {
    const Leg leg{.steps = model.has_resnet() ? kResnetSteps : kSteps};
    Trial single{.name = "single", .choose = frozen(Single, model), .microbatch = 4, .sgd = true, .model = model};
    single.sgd_limit = 3e-6, single.as_ranks = 4, single.as_microbatch = 1;
    const Curve alone = Train(single, leg);
    std::vector<std::pair<std::string, Choose>> all = Strategies();
    for (const auto& [name, choose] : Strategies()) {
      if (name != "ddp" && name != "zero 1" && name != "full_shard" && name != "full_shard wrapped") continue;
      all.emplace_back(name + ", offloaded", Offloaded(choose, FreesParameters(name)));
      all.emplace_back(name + ", activations offloaded", Recomputed(choose, true));
    }
    for (const auto& [name, choose] : all) {
      Trial trial = single;
      trial.name = absl::StrCat(name, ", frozen front"), trial.choose = frozen(choose, model);
      trial.ranks = 4, trial.microbatch = 1, trial.as_ranks = 0;
      trial.set = [](Config& config) { config.check_accesses = true; };
      ExpectSame(trial, Train(trial, leg), alone);
    }
  }
}

// What is dropped follows from the sample, so however samples are divided into ranks and microbatches, the run is one
// rank's.
TEST(Strategies, DropTheSameOnAnyNumberOfRanks) {
  for (const Model& model : {TrialModel(), LlamaTrialModel()}) {
    const auto dropping = [](const Choose& choose) -> Choose {
      return [=](::muster::Train& train) {
        choose(train);
        Dropout& dropout = *train.mutable_dropout();
        dropout.set_embedding(0.1), dropout.set_attention(0.2), dropout.set_residual(0.1);
      };
    };
    Trial single{.name = "single", .choose = dropping(Single), .sgd = true, .model = model, .sgd_limit = 3e-6};
    const Curve alone = Train(single);
    single.choose = Single;
    EXPECT_GT(Relative(Train(single).losses, alone.losses), 1e-3) << "nothing was dropped";
    for (const auto& [name, choose] : Strategies()) {
      for (const auto& [ranks, microbatch] : {std::pair(4u, 1u), std::pair(2u, 3u)}) {
        if (ranks == 2 && name != "ddp" && name != "full_shard recomputed") continue;
        Trial trial = single;
        trial.name = absl::StrCat(name, ", dropout, ", ranks, " ranks"), trial.choose = dropping(choose);
        trial.ranks = ranks, trial.microbatch = microbatch;
        ExpectSame(trial, Train(trial), alone);
      }
    }
  }
}

// One rank with the microbatches of all ranks, of which some are empty. Few steps: rounding that flips the sign before
// a rectifier changes a gradient by more than any limit.
TEST(Strategies, SynchronizedBatchNormTrainsAsOneRankDoes) {
  for (const auto& [ranks, microbatch] : {std::pair(2u, 4u), std::pair(2u, 2u), std::pair(3u, 2u), std::pair(4u, 1u)}) {
    Trial single{.name = "single", .choose = Single, .microbatch = ranks * microbatch, .sgd = true};
    single.model = ResnetTrialModel(), single.sgd_limit = 3e-6;
    single.as_ranks = ranks, single.as_microbatch = microbatch;
    const Curve alone = Train(single, {.steps = kResnetSteps});
    for (const auto& [name, choose] : Strategies()) {
      if (name.starts_with("hybrid") && !name.ends_with("one") && ranks % 2 != 0) continue;
      Trial trial = single;
      trial.name = absl::StrCat(name, ", synchronized, ", ranks, " ranks by ", microbatch), trial.choose = choose;
      trial.ranks = ranks, trial.microbatch = microbatch, trial.as_ranks = 0;
      ExpectSame(trial, Train(trial, {.steps = kResnetSteps}), alone);
    }
  }
}

// One rank's two microbatches are what two ranks normalize by without synchronization.
TEST(Strategies, BatchNormOfEachRankGivesOtherNumbers) {
  Trial trial{.name = "ddp", .choose = Strategies()[0].second, .ranks = 2, .microbatch = 4, .sgd = true};
  trial.model = ResnetTrialModel();
  const Curve together = Train(trial, {.steps = kResnetSteps});
  trial.choose = Single, trial.ranks = 1;
  EXPECT_GT(Relative(Train(trial, {.steps = kResnetSteps}).losses, together.losses), 1e-3);
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

TEST(Strategies, GoOnWithWholeTensorsFromWhatAnotherLeft) {
  for (const std::string optimizer : {"muon", "adafactor"}) {
    const Trial single{.name = optimizer, .choose = Single, .optimizer = optimizer};
    const Curve alone = Train(single), initial = Train(single, {.steps = 0});
    const std::vector<Choose> all = {Strategies()[0].second, ZeroStage(1), ZeroStage(3), FsdpOf(RESHARD_FULL_SHARD)};
    for (size_t i = 0; i < all.size(); ++i) {
      const Trial first{.name = optimizer, .choose = all[i], .ranks = 2, .microbatch = 4, .optimizer = optimizer};
      Trial second = first;
      second.name = absl::StrCat(optimizer, ", strategy ", i), second.choose = all[(i + 1) % all.size()];
      second.ranks = 3 + i % 2, second.microbatch = 1;
      const Curve half = Train(first, {.steps = kSteps / 2});
      Curve rest = Train(second, {.from = &half, .first = kSteps / 2, .steps = kSteps / 2});
      rest.losses.insert(rest.losses.begin(), half.losses.begin(), half.losses.end());
      rest.norms.insert(rest.norms.begin(), half.norms.begin(), half.norms.end());
      ExpectSameUpdates(second, rest, alone, initial);
    }
  }
}

TEST(Strategies, EqualRunsAreBitEqual) {
  const Trial trial{.name = "full_shard", .choose = FsdpOf(RESHARD_FULL_SHARD), .ranks = 3, .microbatch = 1};
  EXPECT_EQ(Train(trial).weights, Train(trial).weights);
}

TEST(Strategies, APartHasNoLogits) {
  const Trial trial{.name = "full_shard", .choose = FsdpOf(RESHARD_FULL_SHARD), .ranks = 2};
  const ::muster::Train train = MakeTrain(trial);
  const Inventory inventory = *models::MakeInventory(train.model());
  const Groups groups(inventory, *strategies::MakeLayout(train, inventory, strategies::AnyPlaces(2)));
  Config config = Configure(train, inventory, 2, 1)->config;
  config.groups = groups.of[1];
  const std::vector<uint32_t> tokens = {1, 2};
  const auto engine = Engine::Create(config).value();
  EXPECT_EQ(tasks::NextToken(engine.get()).Logits(tokens).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace muster::engine
