// A custom model of named tensors beside the same model in PyTorch: two inputs, two targets, a loss and metrics of its
// own, on a file that safetensors' own library wrote. Several ranks beside DistributedDataParallel.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "models/inventory.h"
#include "strategies/compile.h"
#include "strategies/defaults.h"
#include "testing/temporary_folder.h"
#include "tests/parity/peer.h"
#include "tests/parity/ranks.h"
#include "worker/collectives/memory_key_value.h"
#include "worker/engine/configure.h"
#include "worker/engine/engine.h"
#include "worker/plugins/library.h"
#include "worker/plugins/measure.h"
#include "worker/tasks/task.h"

namespace muster::parity {
namespace {

using nlohmann::json;

constexpr char kTensorsLibrary[] = "worker/plugins/libtrial_models.so";
constexpr uint32_t kTensorSteps = 20;

struct TensorsTrial {
  std::string optimizer = "sgd";
  double lr = 0.05;
  uint32_t ranks = 1, samples = 13, microbatch = 13;
  SetStrategy strategy = Ddp;
  std::string mistake = {};
};

using Weights = std::map<std::string, std::vector<float>>;

struct TensorsOutcome {
  Curve curve;
  std::map<std::string, double> evaluation;
  Weights before, after;
};

// By `library`: of the peer's file of samples.
class TensorsParity : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    const auto made = Peer::Get().AskTensors({{"make", Data()}, {"samples", 300}});
    ASSERT_TRUE(made.ok()) << made.status();
    Custom given;
    given.set_library("/opt/models/trial.so");
    ModelOption& option = *given.add_options();
    option.set_name("kind");
    option.set_value("two towers");
    auto loaded = plugins::LoadStructure(given, {.roots = {}, .named = kTensorsLibrary});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    ASSERT_TRUE(plugins::Measure(*loaded).ok());
    model_ = new Model;
    *model_->mutable_custom() = loaded->structure;
  }
  static void TearDownTestSuite() {
    delete folder_;
    delete model_;
  }
  static std::string Data() { return folder_->path() + "/ratings.safetensors"; }

  static Train TrainOf(const TensorsTrial& trial) {
    Train train;
    *train.mutable_model() = *model_;
    trial.strategy(*train.mutable_strategy());
    if (trial.ranks == 1) train.mutable_strategy()->mutable_single();
    Optimizer& o = *train.mutable_optimizer();
    if (trial.optimizer == "sgd") {
      o.mutable_sgd()->set_momentum(0.9);
    } else {
      o.mutable_adamw()->set_beta1(0.9), o.mutable_adamw()->set_beta2(0.999), o.mutable_adamw()->set_eps(1e-8);
    }
    o.set_lr(trial.lr);
    o.set_weight_decay(5e-3);
    o.set_clip_norm(1.0);
    strategies::FillDefaults(o, *train.mutable_strategy());
    train.mutable_batch()->set_sequences(trial.samples);
    train.mutable_batch()->set_microbatch(trial.microbatch);
    train.set_seed(3);
    return train;
  }

  static void Collect(engine::Engine& engine, Weights& weights) {
    for (const engine::StateView& view : engine.State()) {
      if (view.kind != "parameter") continue;
      uint64_t elements = 1;
      for (const uint64_t n : view.shape) elements *= n;
      std::vector<float>& all = weights[view.tensor];
      all.resize(elements);
      std::copy(view.values.begin(), view.values.end(), all.begin() + static_cast<ptrdiff_t>(view.begin));
    }
  }

  static TensorsOutcome OursOfTensors(const TensorsTrial& trial) {
    const Train train = TrainOf(trial);
    const Inventory inventory = models::MakeInventory(train.model()).value();
    const auto source =
        tasks::TaskOf(inventory).value()->Open(inventory, {.field = "data.tensors", .path = Data()}).value();
    collectives::MemoryKeyValue rendezvous;
    TensorsOutcome outcome;
    std::mutex mutex;
    const auto run = [&](uint32_t rank) {
      engine::Configured made = engine::Configure(train, inventory, trial.ranks, rank).value();
      made.config.plugin = plugins::LoadPlugin(train.model(), {.roots = {}, .named = kTensorsLibrary}).value();
      const RankGroups groups(made, rendezvous);
      made.config.groups = groups.by_number();
      made.config.check_accesses = true;
      const auto engine = engine::Engine::Create(made.config).value();
      {
        const std::lock_guard<std::mutex> lock(mutex);
        Collect(*engine, outcome.before);
      }
      const strategies::Share share = strategies::ShareOf(trial.samples, trial.ranks, rank);
      const auto batch = [&](uint64_t first) {
        engine::Batch read = source->Read(first + share.first, share.sequences).value();
        read.global_samples = trial.samples;
        return read;
      };
      for (uint32_t step = 0; step < kTensorSteps; ++step) {
        const auto result = engine->Step(batch(uint64_t{step} * trial.samples), trial.lr);
        ASSERT_TRUE(result.ok()) << result.status();
        if (rank != 0) continue;
        outcome.curve.losses.push_back(result->loss);
        outcome.curve.norms.push_back(result->gradient_norm);
      }
      const auto found = engine->Evaluate(batch(0));
      ASSERT_TRUE(found.ok()) << found.status();
      const std::lock_guard<std::mutex> lock(mutex);
      outcome.evaluation["loss"] = found->loss;
      for (int m = 0; m < inventory.task().metrics_size(); ++m) {
        outcome.evaluation[inventory.task().metrics(m)] = found->metrics[static_cast<size_t>(m)];
      }
      Collect(*engine, outcome.after);
    };
    RunRanks(trial.ranks, run);
    return outcome;
  }

  static TensorsOutcome TheirsOfTensors(const TensorsTrial& trial, const Weights& weights) {
    const auto answer = Peer::Get().AskTensors({{"data", Data()},
                                                {"weights", weights},
                                                {"steps", kTensorSteps},
                                                {"samples", trial.samples},
                                                {"microbatch", trial.microbatch},
                                                {"ranks", trial.ranks},
                                                {"kind", trial.optimizer},
                                                {"lr", trial.lr},
                                                {"mistake", trial.mistake}});
    EXPECT_TRUE(answer.ok()) << answer.status();
    if (!answer.ok()) return {};
    return {.curve = {(*answer)["losses"], (*answer)["norms"]},
            .evaluation = (*answer)["evaluation"],
            .after = (*answer)["tensors"].get<Weights>()};
  }

  // The largest difference of a weight, relative to its tensor's largest one; not after AdamW, which normalizes noise.
  static double WeightDifference(const Weights& ours, const Weights& theirs) {
    EXPECT_EQ(ours.size(), theirs.size());
    double most = 0;
    for (const auto& [name, right] : theirs) {
      double difference = 0, largest = 0;
      for (size_t i = 0; i < right.size(); ++i) {
        difference = std::max(difference, std::abs(static_cast<double>(ours.at(name).at(i)) - right[i]));
        largest = std::max(largest, std::abs(static_cast<double>(right[i])));
      }
      most = std::max(most, difference / largest);
    }
    std::printf("weights: %.2g\n", most);
    return most;
  }

  static void ExpectSameTensors(const TensorsTrial& trial) {
    const TensorsOutcome ours = OursOfTensors(trial), theirs = TheirsOfTensors(trial, ours.before);
    const Difference d = Compare(ours.curve, theirs.curve);
    EXPECT_LE(d.loss, kLossLimit);
    EXPECT_LE(d.norm, kNormLimit);
    if (trial.optimizer == "sgd") {
      EXPECT_LE(WeightDifference(ours.after, theirs.after), 2e-5);
    }
    ASSERT_EQ(ours.evaluation.size(), 3u);
    for (const auto& [name, value] : theirs.evaluation) EXPECT_NEAR(ours.evaluation.at(name), value, 1e-5) << name;
    EXPECT_LT(ours.curve.losses.back(), ours.curve.losses.front());
  }

  static TemporaryFolder* folder_;
  static Model* model_;
};
TemporaryFolder* TensorsParity::folder_ = nullptr;
Model* TensorsParity::model_ = nullptr;

TEST_F(TensorsParity, OneRankIsPyTorch) {
  ExpectSameTensors({});
  ExpectSameTensors({.optimizer = "adamw", .lr = 3e-3, .microbatch = 5});
}
TEST_F(TensorsParity, TwoRanksAreDistributedDataParallel) {
  ExpectSameTensors({.ranks = 2, .microbatch = 7});
  ExpectSameTensors({.ranks = 2, .microbatch = 3});
  ExpectSameTensors({.optimizer = "adamw", .lr = 3e-3, .ranks = 2, .microbatch = 4});
}
TEST_F(TensorsParity, ShardedRanksToo) {
  ExpectSameTensors({.ranks = 2, .microbatch = 3, .strategy = [](Strategy& s) { s.mutable_fsdp(); }});
  ExpectSameTensors({.ranks = 2, .microbatch = 4, .strategy = [](Strategy& s) { s.mutable_zero()->set_stage(3); }});
}
TEST_F(TensorsParity, MistakesAreSeen) {
  for (const char* mistake : {"swapped_targets", "mean_of_ranks", "sum_of_items", "no_clicks"}) {
    const TensorsTrial trial{.ranks = 2, .microbatch = 7, .mistake = mistake};
    const TensorsOutcome ours = OursOfTensors(trial), theirs = TheirsOfTensors(trial, ours.before);
    const Difference d = Compare(ours.curve, theirs.curve);
    ASSERT_TRUE(std::isfinite(d.loss)) << "nothing was compared";
    EXPECT_FALSE(Same(d)) << mistake << " would not be seen";
  }
}

}  // namespace
}  // namespace muster::parity
