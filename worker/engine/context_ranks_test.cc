// Ranks that share each sequence train as one rank does: their whole weights see all tokens between them.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/engine/group_of_others_test.h"
#include "worker/engine/strategy_trials_test.h"

namespace muster::engine {
namespace {

using T = ::muster::Train;

// With heads that two tensor ranks divide.
Model DividedGpt2() {
  Model model = TrialModel();
  model.mutable_gpt2()->set_heads(4), model.mutable_gpt2()->set_width(40);
  return model;
}

// Two heads share each head of keys and values, and two of three layers see the last 7 tokens.
Model DividedLlama() {
  Model model = LlamaTrialModel();
  model.mutable_llama()->set_inner(4 * 10);
  return model;
}

std::vector<std::pair<std::string, Model>> Models() { return {{"gpt2", DividedGpt2()}, {"llama", DividedLlama()}}; }

Choose Ddp() { return StrategyOf("ddp"); }

Trial Shared(const std::string& name, const Model& model, uint32_t context, const Choose& choose, bool sgd) {
  return {.name = name,
          .choose = choose,
          .ranks = context,
          .microbatch = 2,
          .sgd = sgd,
          .set = [](Config& config) { config.check_accesses = true; },
          .model = model,
          // Those of tensor ranks: products and scores are summed in another order, and AdamW divides by the roots of
          // small second moments.
          .sgd_limit = 5e-6,
          .adamw_limit = 3e-5,
          .context = context};
}

// Some gradients of Llama are as small as the default epsilon, where AdamW makes updates of their rounding.
Choose Rounded(const Choose& choose, bool sgd) {
  return [=](T& train) {
    choose(train);
    if (!sgd) train.mutable_optimizer()->mutable_adamw()->set_eps(1e-6);
  };
}

Curve Alone(const Model& model, bool sgd) {
  Trial alone = OneRank(model, sgd);
  alone.choose = Rounded(Single, sgd);
  return Train(alone);
}

// All ranks share each sequence, or two pairs of ranks have samples of their own: of seven one pair has none in the
// last microbatch.
TEST(ContextRanks, TrainAsOneRankDoes) {
  for (const auto& [family, model] : Models()) {
    for (const bool sgd : {true, false}) {
      const Curve expected = Alone(model, sgd);
      for (const auto& [context, ranks, microbatch] :
           std::vector<std::array<uint32_t, 3>>{{2, 2, 7}, {2, 2, 2}, {4, 4, 2}, {2, 4, 1}}) {
        Trial trial = Shared(absl::StrCat(family, ", ", context, " of ", ranks, sgd ? ", sgd" : ""), model, context,
                             Rounded(Ddp(), sgd), sgd);
        trial.ranks = ranks, trial.microbatch = microbatch;
        ExpectSame(trial, Train(trial), expected);
      }
    }
  }
}

// Shards and replicas of a model count them as they count other ranks: pairs in one replica, or four in two.
TEST(ContextRanks, TrainInsideEveryStrategy) {
  for (const auto& [family, model] : Models()) {
    const Curve expected = Alone(model, true);
    for (const auto& [name, strategy] : Strategies()) {
      for (const uint32_t context : {2u, 4u}) {
        Trial trial =
            Shared(absl::StrCat(family, ", ", name, ", ", context), model, context, Rounded(strategy, true), true);
        trial.ranks = 4;
        ExpectSame(trial, Train(trial), expected);
      }
    }
  }
}

// Two stages, of two data ranks that share sequences, and of two tensor ranks each or not; in eighteen cases, in which
// each schedule, family, optimizer and division meets each of the others.
TEST(ContextRanks, TrainInEveryScheduleOfAPipeline) {
  for (const auto& [family, model] : Models()) {
    Curve expected[2];
    for (const bool sgd : {false, true}) expected[sgd] = Alone(model, sgd);
    for (size_t s = 0; s < Schedules().size(); ++s) {
      const auto& [name, schedule] = Schedules()[s];
      for (const uint32_t tensor : {1u, 2u}) {
        const bool sgd = (s + tensor + model.has_gpt2()) % 2 == 0, by_tokens = tensor > 1 && (s / 2) % 2 == 0;
        const Choose choose = By(schedule.first, schedule.second, StrategyOf(s % 2 == 0 ? "full_shard" : "zero 2"));
        const Choose divided = [=](T& train) {
          choose(train);
          train.mutable_parallel()->set_sequence_parallel(by_tokens);
        };
        Trial trial =
            Shared(absl::StrCat(family, ", ", name, ", ", tensor, by_tokens ? " by tokens" : "", sgd ? ", sgd" : ""),
                   model, 2, Rounded(divided, sgd), sgd);
        trial.stages = 2, trial.tensor = tensor, trial.ranks = 4 * tensor, trial.microbatch = 1;
        ExpectSame(trial, Train(trial), expected[sgd]);
      }
    }
  }
}

// Gradients and parameters go through two levels, and keys and values through one.
TEST(ContextRanks, TrainOnNodesOfTwo) {
  const Curve expected = Alone(DividedGpt2(), true);
  for (const char* const name : {"ddp", "zero 2", "full_shard"}) {
    for (const uint32_t context : {2u, 4u}) {
      Trial trial = Shared(absl::StrCat(name, " on nodes, ", context), DividedGpt2(), context,
                           Rounded(StrategyOf(name), true), true);
      trial.ranks = 4, trial.ranks_on_node = 2;
      ExpectSame(trial, Train(trial), expected);
    }
  }
}

// Their exchanges come between those of the shares, in each pass.
TEST(ContextRanks, TrainWithTensorRanks) {
  for (const auto& [family, model] : Models()) {
    const Curve expected = Alone(model, true);
    for (const uint32_t context : {2u, 4u}) {
      for (const bool by_tokens : {false, true}) {
        for (const bool recomputes : {false, true}) {
          const auto choose = [=](T& train) {
            StrategyOf(recomputes ? "full_shard recomputed" : "zero 3")(train);
            train.mutable_parallel()->set_sequence_parallel(by_tokens);
          };
          Trial trial = Shared(
              absl::StrCat(family, ", ", context, by_tokens ? " by tokens" : "", recomputes ? ", recomputed" : ""),
              model, context, Rounded(choose, true), true);
          trial.tensor = 2, trial.ranks = 2 * context;
          ExpectSame(trial, Train(trial), expected);
        }
      }
    }
  }
}

// LibTorch's operators and the programs of GPUs give what the vector code gives.
TEST(ContextRanks, TrainByTheCodeOfDevices) {
  for (const auto& [family, model] : Models()) {
    const Curve expected = Alone(model, true);
    for (const bool portable : {false, true}) {
      Trial trial = Shared(absl::StrCat(family, portable ? ", portable" : ", programs"), model, 2,
                           Rounded(StrategyOf("full_shard"), true), true);
      trial.ranks = 4;
      trial.set = [=](Config& config) {
        config.check_accesses = config.streams = true;
        (portable ? config.portable : config.device_rows) = true;
      };
      ExpectSame(trial, Train(trial), expected);
    }
  }
}

Choose Dropping(const Choose& choose) {
  return [=](T& train) {
    choose(train);
    Dropout& dropout = *train.mutable_dropout();
    dropout.set_embedding(0.1), dropout.set_attention(0.2), dropout.set_residual(0.1);
  };
}

// What is dropped follows from where a token is in its sequence, whichever rank has it and however it is computed.
TEST(ContextRanks, DropWhatOneRankDrops) {
  struct Case {
    std::string name;
    Choose choose;
    uint32_t context, ranks, microbatch, tensor = 1, stages = 1;
    bool portable = false, device_rows = false;
  };
  const auto by_tokens = [](const Choose& choose) -> Choose {
    return [=](T& train) {
      choose(train);
      train.mutable_parallel()->set_sequence_parallel(true);
    };
  };
  const auto& [schedule, chunks] = Schedules()[3].second;
  const std::vector<Case> cases = {
      {"all share", Ddp(), 2, 2, 7},
      {"two pairs", Ddp(), 2, 4, 1},
      {"four, recomputed", StrategyOf("full_shard recomputed"), 4, 4, 2},
      {"tensor ranks", StrategyOf("zero 3"), 2, 4, 2, 2},
      {"tensor ranks by tokens, recomputed", by_tokens(StrategyOf("full_shard recomputed")), 2, 4, 2, 2},
      {"zero bubble", By(schedule, chunks, StrategyOf("full_shard")), 2, 4, 1, 1, 2},
      {"portable", StrategyOf("full_shard"), 2, 4, 2, 1, 1, true},
      {"programs", StrategyOf("full_shard"), 2, 4, 2, 1, 1, false, true},
      {"programs, recomputed", StrategyOf("full_shard recomputed"), 2, 4, 2, 1, 1, false, true}};
  for (const auto& [family, model] : Models()) {
    Trial alone = OneRank(model, true);
    alone.choose = Dropping(Single);
    const Curve expected = Train(alone);
    EXPECT_GT(Relative(Alone(model, true).losses, expected.losses), 1e-3) << "nothing was dropped";
    for (const Case& c : cases) {
      Trial trial = Shared(absl::StrCat(family, ", dropout, ", c.name), model, c.context, Dropping(c.choose), true);
      trial.ranks = c.ranks, trial.microbatch = c.microbatch, trial.tensor = c.tensor, trial.stages = c.stages;
      trial.set = [&](Config& config) {
        config.check_accesses = true, config.portable = c.portable, config.device_rows = c.device_rows;
      };
      ExpectSame(trial, Train(trial), expected);
    }
  }
}

// The first block that goes back needs no gradients of its keys and values, and exchanges them all the same.
TEST(ContextRanks, TrainAfterFrozenAttention) {
  const Choose choose = [](T& train) {
    Ddp()(train);
    for (const char* frozen :
         {"model.embed_tokens.*", "model.layers.0.input_layernorm.*", "model.layers.0.self_attn.*"}) {
      train.add_freeze(frozen);
    }
  };
  Trial alone = OneRank(DividedLlama(), true);
  alone.choose = choose;
  const Curve expected = Train(alone);
  for (const bool portable : {false, true}) {
    Trial trial = Shared(portable ? "portable" : "vector code", DividedLlama(), 2, choose, true);
    trial.set = [=](Config& config) { config.check_accesses = true, config.portable = portable; };
    ExpectSame(trial, Train(trial), expected);
  }
}

// What is gathered has two bytes: half of what is declared.
TEST(ContextRanks, TrainInNarrowTypes) {
  for (const auto& [family, model] : Models()) {
    const Curve initial = Train(OneRank(model, true), {.steps = 0});
    for (const Dtype compute : {DTYPE_BF16, DTYPE_FP16}) {
      Trial alone = OneRank(model, true);
      alone.compute = compute;
      Trial trial = Shared(absl::StrCat(family, ", ", Dtype_Name(compute)), model, 2, Ddp(), true);
      trial.compute = compute;
      const Curve expected = Train(alone), seen = Train(trial);
      EXPECT_LE(Relative(seen.losses, expected.losses), 2e-3) << trial.name;
      EXPECT_LE(UpdateError(seen, expected, initial), 0.05) << trial.name;
    }
  }
}

// A step of each of two ranks, whose inventories were changed alike.
absl::Status StepOfTwo(const std::function<void(Inventory&)>& spoil, uint32_t tensor = 1) {
  Trial trial = Shared("two", DividedGpt2(), 2, Ddp(), true);
  trial.tensor = tensor, trial.ranks = 2 * tensor;
  const T train = MakeTrain(trial);
  const Inventory inventory = *models::MakeInventory(train);
  const auto layout = strategies::MakeLayout(train, inventory, trial.places());
  const Groups groups(inventory, *layout);
  std::vector<absl::Status> statuses(trial.ranks);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < trial.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Config config = Configure(train, inventory, trial.ranks, rank)->config;
      config.groups = groups.of[rank];
      spoil(config.inventory);
      const auto engine = Engine::Create(config);
      statuses[rank] = engine.ok() ? TakeStep(trial, rank, **engine).status() : engine.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) EXPECT_EQ(status.code(), statuses[0].code()) << status;
  return statuses[0];
}

// Each number that a unit must keep to: a plan that prices something else is wrong. Keys and values of a token have 40
// floats each; of two samples of 8 tokens that is 5120 bytes.
TEST(ContextRanks, AUnitMustExchangeWhatTheInventoryDeclares) {
  EXPECT_EQ(StepOfTwo([](Inventory&) {}), absl::OkStatus());
  using Spoil = std::function<void(TensorExchange&)>;
  const std::pair<Spoil, const char*> cases[] = {
      {[](TensorExchange& e) { e.mutable_forward()->set_collectives(2); },
       "Forward h.0 m0 in context: the unit summed 0, gathered 5120 and scattered 0 bytes in 1 collectives with the "
       "ranks that share its samples; the inventory declares 0, 5120 and 0 in 2"},
      {[](TensorExchange& e) { e.mutable_forward()->set_gathered_bytes(2564); },
       "Forward h.0 m0 in context: the unit summed 0, gathered 5120 and scattered 0 bytes in 1 collectives with the "
       "ranks that share its samples; the inventory declares 0, 5128 and 0 in 1"},
      {[](TensorExchange& e) { e.mutable_backward()->set_scattered_bytes(0); },
       "Backward h.0 m0 in context: the unit summed 0, gathered 5120 and scattered 5120 bytes in 2 collectives with "
       "the ranks that share its samples; the inventory declares 0, 5120 and 0 in 2"}};
  for (const auto& [spoil, says] : cases) {
    const absl::Status status =
        StepOfTwo([&](Inventory& inventory) { spoil(*inventory.mutable_units(1)->mutable_context_exchange()); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(absl::StrContains(status.message(), says)) << status;
  }
}

// Of a unit that exchanges with both, each is compared with its own declaration.
TEST(ContextRanks, AUnitOfTensorRanksMustKeepToBoth) {
  EXPECT_EQ(StepOfTwo([](Inventory&) {}, 2), absl::OkStatus());
  const absl::Status tokens = StepOfTwo(
      [](Inventory& i) { i.mutable_units(1)->mutable_context_exchange()->mutable_forward()->set_gathered_bytes(4); },
      2);
  EXPECT_TRUE(absl::StrContains(tokens.message(), "Forward h.0 m0 in context and tensor: the unit")) << tokens;
  EXPECT_TRUE(absl::StrContains(tokens.message(), "with the ranks that share its samples; the inventory")) << tokens;
  const absl::Status shares = StepOfTwo(
      [](Inventory& i) { i.mutable_units(1)->mutable_tensor_exchange()->mutable_forward()->set_summed_bytes(4); }, 2);
  EXPECT_TRUE(absl::StrContains(shares.message(), "Forward h.0 m0 in context and tensor: the unit")) << shares;
  EXPECT_TRUE(absl::StrContains(shares.message(), "with the ranks of its other shares; the inventory")) << shares;
}

TEST(ContextRanks, PredictNothing) {
  const Trial trial = Shared("two", DividedGpt2(), 2, Ddp(), true);
  const T train = MakeTrain(trial);
  Config config = Configure(train, *models::MakeInventory(train), 2, 0)->config;
  GroupOfOthers group(0, 2);
  config.groups.assign(config.schedule.groups.size(), &group);
  const auto engine = Engine::Create(config).value();
  const absl::Status status = engine->Predict(at::zeros({1, 4}, at::kLong)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "this rank computes only a part of each sequence, and a prediction needs all of it");
}

// Without one of the two groups that an op stands for, it cannot run.
TEST(ContextRanks, AnOpOfBothGroupsNeedsEach) {
  Trial trial = Shared("four", DividedGpt2(), 2, Ddp(), true);
  trial.tensor = 2, trial.ranks = 4;
  const T train = MakeTrain(trial);
  const Inventory inventory = *models::MakeInventory(train);
  const auto layout = strategies::MakeLayout(train, inventory, trial.places());
  const Groups groups(inventory, *layout);
  EXPECT_EQ(groups.of[0][kContextTensorGroup], nullptr) << "no collective is issued in it";
  for (const int32_t without : {kContextGroup, kTensorGroup}) {
    Config config = Configure(train, inventory, 4, 0)->config;
    config.groups = groups.of[0];
    config.groups[without] = nullptr;
    const absl::Status status = Engine::Create(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StartsWith(status.message(), "no group for ")) << status;
  }
}

}  // namespace
}  // namespace muster::engine
