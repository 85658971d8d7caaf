// Ranks of several nodes that reduce and gather inside nodes, then between them, train as one rank does.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/engine/strategy_trials_test.h"

namespace muster::engine {
namespace {

std::atomic<bool> chosen = false;
std::atomic<int> early_calls = 0;

}  // namespace
}  // namespace muster::engine

// In place of MKL's own, which it calls, and which each of MKL's vector functions calls first. What begins before the
// first call has returned may not get the CPU's functions.
extern "C" int mkl_vml_serv_cpu_detect() {
  static auto* const detect = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "mkl_vml_serv_cpu_detect"));
  if (!muster::engine::chosen) {
    ++muster::engine::early_calls;
    const timespec wait = {.tv_nsec = 100'000'000};
    nanosleep(&wait, nullptr);
  }
  const int functions = detect();
  muster::engine::chosen = true;
  return functions;
}

namespace muster::engine {
namespace {

struct Nodes {
  uint32_t ranks, on_node;
};

Trial On(const Nodes& nodes, const std::string& name, const Choose& choose) {
  return {.name = absl::StrCat(name, ", ", nodes.ranks, " ranks, ", nodes.on_node, " on a node"),
          .choose = choose,
          .ranks = nodes.ranks,
          .sgd = true,
          .set = [](Config& config) { config.check_accesses = true; },
          .ranks_on_node = nodes.on_node};
}

bool HasLevels(const Trial& trial) {
  const ::muster::Train train = MakeTrain(trial);
  const Configured made =
      *Configure(train, *models::MakeInventory(train), trial.ranks, /*rank=*/0, trial.ranks_on_node);
  return made.mesh.shard_levels() || made.mesh.replica_levels();
}

// The first test of the process, all ranks of which compute the norm of a gradient at the same time.
TEST(Levels, OneThreadChoosesVectorFunctionsForAll) {
  Train(On({4, 2}, "zero 2", ZeroStage(2)), {.steps = 1});
  EXPECT_EQ(early_calls, 1);
}

// Groups of two share a copy in "hybrid": on nodes of two its replicas are on different nodes, so it has one level; on
// nodes of four it has two.
TEST(Levels, TrainAsOneRankDoes) {
  const Curve alone = Train(OneRank(TrialModel(), true));
  for (const auto& [name, choose] : Strategies()) {
    for (const Nodes nodes : {Nodes{4, 2}, Nodes{6, 3}, Nodes{6, 2}, Nodes{8, 4}}) {
      const bool hybrid = name.starts_with("hybrid") && !name.ends_with("one");
      if (hybrid && nodes.on_node != 4) continue;
      Trial trial = On(nodes, name, choose);
      trial.microbatch = nodes.ranks == 4 ? 1 : kSequences;
      trial.adversarial = nodes.ranks == 6;
      EXPECT_TRUE(HasLevels(trial)) << trial.name;
      ExpectSame(trial, Train(trial), alone);
    }
  }
}

TEST(Levels, TrainOnStreamsAndByAdamWAsOneRankDoes) {
  Trial one = OneRank(TrialModel(), false);
  const Curve alone = Train(one);
  for (const auto& [name, choose] : Strategies()) {
    if (name.starts_with("hybrid")) continue;
    Trial trial = On({4, 2}, name, choose);
    trial.sgd = false, trial.ahead = true, trial.microbatch = 1;
    trial.set = [](Config& config) { config.check_accesses = config.streams = true; };
    ExpectSame(trial, Train(trial), alone);
  }
}

// What is summed in bf16 is rounded once more, between nodes; every rank still has the same bits, which Train checks,
// and the curve stays close.
TEST(Levels, SumInBf16) {
  const Curve alone = Train(OneRank(TrialModel(), true));
  for (const auto& [name, choose] : Strategies()) {
    if (name != "ddp" && name != "zero 2" && name != "full_shard" && name != "hybrid") continue;
    Trial trial = On({8, 4}, name, choose);
    trial.reduce = DTYPE_BF16;
    const Curve seen = Train(trial);
    EXPECT_LT(Relative(seen.losses, alone.losses), 2e-3) << name;
    EXPECT_GT(Relative(seen.losses, alone.losses), 0) << name << ": was not summed in bf16";
  }
}

TEST(Levels, TrainInsidePipelinesAndDividedUnits) {
  Model even = TrialModel();
  even.mutable_gpt2()->set_heads(4), even.mutable_gpt2()->set_width(40);
  const Curve alone = Train(OneRank(even, true));
  for (const auto& [name, choose] : Strategies()) {
    if (name != "ddp" && name != "zero 2" && name != "full_shard") continue;
    for (const bool divided : {false, true}) {
      Trial trial = On({8, divided ? 4u : 2u}, absl::StrCat(name, divided ? ", tensor" : ", stages"), choose);
      trial.model = even, trial.sgd_limit = 5e-6, trial.microbatch = 2;
      trial.stages = divided ? 1 : 2, trial.tensor = divided ? 2 : 1;
      trial.choose = [&, choose = choose](::muster::Train& train) {
        choose(train);
        if (!divided) train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_1F1B);
      };
      EXPECT_TRUE(HasLevels(trial)) << trial.name;
      ExpectSame(trial, Train(trial), alone);
    }
  }
}

TEST(Levels, TrainWithWhatIsOffloadedAsOneRankDoes) {
  const Curve alone = Train(OneRank(TrialModel(), true));
  for (const auto& [name, choose] : Strategies()) {
    if (name != "ddp" && name != "zero 3" && name != "full_shard" && name != "hybrid") continue;
    for (const bool parameters : {false, true}) {
      if (parameters && name == "ddp") continue;
      Trial trial = On({8, 4}, absl::StrCat(name, parameters ? ", parameters" : "", " offloaded"), choose);
      trial.choose = [&, choose = choose](::muster::Train& train) {
        choose(train);
        train.mutable_offload()->set_optimizer(true), train.mutable_offload()->set_parameters(parameters);
      };
      ExpectSame(trial, Train(trial), alone);
    }
  }
}

// The order of sums is fixed.
TEST(Levels, RepeatBitByBit) {
  for (const auto& [name, choose] : Strategies()) {
    if (name != "ddp" && name != "zero 2" && name != "full_shard") continue;
    const Trial trial = On({6, 3}, name, choose);
    const Curve first = Train(trial), again = Train(trial);
    EXPECT_EQ(first.losses, again.losses) << name;
    EXPECT_EQ(first.weights, again.weights) << name;
  }
}

}  // namespace
}  // namespace muster::engine
