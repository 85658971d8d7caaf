// A model from a library trains by every strategy as on one rank, resumes to the same bits, and trains as torch::nn and
// torch::optim do.
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/engine/strategy_trials_test.h"
#include "worker/plugins/library.h"
#include "worker/plugins/measure.h"
#include "worker/units/activations_test.h"

namespace muster::engine {
namespace {

constexpr char kTrialLibrary[] = "worker/plugins/libtrial_models.so";

using KindOptions = std::vector<std::pair<std::string, std::string>>;

// The model as a spec has it, measured.
Model TrialCustom(const KindOptions& options) {
  Custom given;
  given.set_library("/a/path/on/the/workers.so");
  for (const auto& [name, value] : options) {
    ModelOption& option = *given.add_options();
    option.set_name(name);
    option.set_value(value);
  }
  auto loaded = plugins::LoadStructure(given, {.roots = {}, .named = kTrialLibrary});
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  const absl::Status measured = plugins::Measure(*loaded);
  EXPECT_TRUE(measured.ok()) << measured;
  Model model;
  *model.mutable_custom() = loaded->structure;
  return model;
}

void LoadInto(Config& config) {
  auto plugin = plugins::LoadPlugin(config.train.model(), {.roots = {}, .named = kTrialLibrary});
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  config.plugin = *std::move(plugin);
}

Trial CustomTrial(const std::string& kind, bool sgd) {
  // Its smallest matrices are a tenth of GPT-2's, and so is what their rounding is compared with.
  return {.name = kind,
          .choose = Single,
          .sgd = sgd,
          .set = LoadInto,
          .model = TrialCustom({{"kind", kind}}),
          .sgd_limit = 1e-5};
}

void CustomTrainsAsOneDoes(const std::string& kind, bool sgd, uint32_t ranks) {
  Trial trial = CustomTrial(kind, sgd);
  const Curve alone = Train(trial);
  EXPECT_NE(alone.weights, Train(trial, {.steps = 0}).weights) << "it does not learn";
  for (const auto& [name, choose] : Strategies()) {
    trial.name = absl::StrCat(kind, ", ", name, ", ", ranks, " ranks");
    trial.choose = choose;
    trial.ranks = ranks;
    if (name.starts_with("hybrid") && !name.ends_with("one") && ranks % 2 != 0) continue;
    for (const uint32_t microbatch : {1u, (kSequences + ranks - 1) / ranks}) {
      trial.microbatch = microbatch;
      ExpectSame(trial, Train(trial), alone);
    }
  }
}

Choose StrategyNamed(const std::string& name) {
  for (const auto& [its_name, choose] : Strategies()) {
    if (its_name == name) return choose;
  }
  ADD_FAILURE() << name;
  return Single;
}

TEST(CustomStrategies, TrainAsOneRankDoes) { CustomTrainsAsOneDoes("language", /*sgd=*/true, 2); }
TEST(CustomStrategies, TrainTiedWeightsAsOneRankDoes) { CustomTrainsAsOneDoes("tied language", /*sgd=*/true, 4); }

TEST(CustomStrategies, TrainNamedTensorsAsOneRankDoes) { CustomTrainsAsOneDoes("two towers", /*sgd=*/true, 2); }
TEST(CustomStrategies, TrainOnTargetsThatAreInputsAsOneRankDoes) {
  CustomTrainsAsOneDoes("autoencoder", /*sgd=*/true, 4);
}

// Two stages of two ranks: the batch's tensors are read by the first and the last stage.
TEST(CustomStrategies, TrainInAPipelineAsOneRankDoes) {
  for (const char* kind : {"language", "two towers", "autoencoder"}) {
    Trial trial = CustomTrial(kind, /*sgd=*/true);
    const Curve alone = Train(trial);
    for (const PipelineSchedule schedule : {PIPELINE_SCHEDULE_GPIPE, PIPELINE_SCHEDULE_1F1B}) {
      trial.name = absl::StrCat(kind, ", ", PipelineSchedule_Name(schedule));
      trial.choose = [=](::muster::Train& train) {
        StrategyNamed("full_shard")(train);
        train.mutable_pipeline()->set_schedule(schedule);
        train.mutable_pipeline()->set_chunks(1);
      };
      trial.ranks = 4, trial.stages = 2, trial.microbatch = 2;
      ExpectSame(trial, Train(trial), alone);
    }
  }
}

// Two mixers borrow from mixers of another stage, of the same one or of two, beside the head from the embedding.
TEST(CustomStrategies, TrainSharedTensorsInAPipelineAsOneRankDoes) {
  struct Stages {
    uint32_t stages, ranks;
    std::vector<std::string> cut;
  };
  for (const bool sgd : {true, false}) {
    Trial trial = CustomTrial("shared mixers", sgd);
    const Curve alone = Train(trial);
    for (const Stages& on :
         {Stages{2, 4, {"mixer2"}}, Stages{3, 3, {"mixer1", "mixer3"}}, Stages{3, 6, {"mixer0", "mixer2"}}}) {
      for (const PipelineSchedule schedule :
           {PIPELINE_SCHEDULE_GPIPE, PIPELINE_SCHEDULE_1F1B, PIPELINE_SCHEDULE_ZERO_BUBBLE}) {
        for (const char* strategy : {"ddp", "zero 2", "full_shard"}) {
          trial.name = absl::StrCat(on.stages, " stages of ", on.ranks / on.stages, ", ", strategy, ", ",
                                    PipelineSchedule_Name(schedule), sgd ? ", sgd" : "");
          trial.choose = [&](::muster::Train& train) {
            StrategyNamed(strategy)(train);
            Pipeline& pipeline = *train.mutable_pipeline();
            pipeline.set_schedule(schedule);
            pipeline.set_chunks(1);
            for (const std::string& unit : on.cut) pipeline.add_cut(unit);
          };
          trial.ranks = on.ranks, trial.stages = on.stages, trial.microbatch = 1;
          ExpectSame(trial, Train(trial), alone);
        }
      }
    }
  }
}

// In bf16 a mixer gives what its modules give, and a residual stream that a module keeps in fp32 stays so.
TEST(CustomStrategies, ActivationsAreWhatTheInventoryDeclares) {
  for (const char* kind : {"language", "tied language", "two towers", "autoencoder", "wide residuals", "images"}) {
    const Model model = TrialCustom({{"kind", kind}});
    const Inventory inventory = *models::MakeInventory(model);
    ASSERT_TRUE(models::CheckOutputs(inventory).ok()) << kind << ": " << models::CheckOutputs(inventory);
    const Unit& first = inventory.units(0);
    const bool wide = kind == std::string("wide residuals");
    EXPECT_EQ(first.outputs(0).type(), wide ? Activation::FP32 : Activation::COMPUTE) << kind;
    for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
      if (compute != at::kFloat && kind == std::string("images")) continue;  // batch normalization, refused in bf16
      units::UnitOptions options;
      options.plugin = *plugins::LoadPlugin(model, {.roots = {}, .named = kTrialLibrary});
      units::ExpectDeclaredActivations(inventory, compute, options, units::RandomContext(inventory.task(), 3), kind);
    }
  }
}

// It can be trained, and not be cut between ranks.
TEST(CustomStrategies, ActivationsOfAnotherTypeAreUnknown) {
  const Inventory inventory = *models::MakeInventory(TrialCustom({{"kind", "double residuals"}}));
  EXPECT_TRUE(inventory.units(0).outputs().empty());
  EXPECT_EQ(inventory.units(0).output_bytes(), 8u * kContext * 39);
  EXPECT_EQ(models::CheckOutputs(inventory).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CustomStrategies, ResumeAcrossStrategies) {
  Trial trial = CustomTrial("tied language", /*sgd=*/false);
  const Curve whole = Train(trial), half = Train(trial, {.steps = kSteps / 2});
  const Curve same = Train(trial, {.from = &half, .first = kSteps / 2, .steps = kSteps / 2});
  EXPECT_EQ(same.weights, whole.weights) << "to the bit";
  EXPECT_EQ(same.state, whole.state);
  trial.ranks = 3;
  trial.microbatch = 3;
  trial.choose = FsdpOf(RESHARD_FULL_SHARD);
  trial.name = "fsdp from single";
  ExpectSameWeights(trial, Train(trial, {.from = &half, .first = kSteps / 2, .steps = kSteps / 2}), whole);
}

void RecomputingChangesNoBitOf(const std::string& kind) {
  Trial trial = CustomTrial(kind, /*sgd=*/true);
  const Curve kept = Train(trial);
  trial.choose = [](::muster::Train& train) { Single(train), train.set_activation_checkpointing(true); };
  const Curve again = Train(trial);
  EXPECT_EQ(again.losses, kept.losses);
  EXPECT_EQ(again.weights, kept.weights);
}

TEST(CustomStrategies, RecomputingChangesNoBit) {
  RecomputingChangesNoBitOf("language");
  RecomputingChangesNoBitOf("two towers");
}

// Only the last unit is trained, so its backward alone is left.
TEST(CustomStrategies, TrainBehindAFrozenFrontAsOneRankDoes) {
  Trial trial = CustomTrial("language", /*sgd=*/true);
  const Curve initial = Train(trial, {.steps = 0});
  const Inventory inventory = *models::MakeInventory(trial.model);
  const auto& last = inventory.units(inventory.units_size() - 1);
  const auto frozen = [&](const Choose& choose) -> Choose {
    return [=](::muster::Train& train) {
      choose(train);
      train.add_freeze("*");
      for (const Tensor& tensor : last.tensors()) train.add_freeze(absl::StrCat("!", tensor.name()));
    };
  };
  trial.choose = frozen(Single);
  const Curve alone = Train(trial);
  for (const auto& [tensor, values] : alone.weights) {
    const bool moves = std::any_of(last.tensors().begin(), last.tensors().end(),
                                   [&, name = tensor](const Tensor& t) { return t.name() == name; });
    EXPECT_EQ(values != initial.weights.at(tensor), moves) << tensor;
  }
  for (const Choose& choose : {Strategies()[0].second, FsdpOf(RESHARD_FULL_SHARD)}) {
    trial.choose = frozen(choose), trial.ranks = 3, trial.microbatch = 1;
    ExpectSame(trial, Train(trial), alone);
  }
}

void Bf16UpdatesAlmostAsFp32(const std::string& kind) {
  Trial trial = CustomTrial(kind, /*sgd=*/true);
  const Curve full = Train(trial), initial = Train(trial, {.steps = 0});
  trial.compute = DTYPE_BF16;
  const double error = UpdateError(Train(trial), full, initial);
  EXPECT_LE(error, 0.1);
  EXPECT_GT(error, 1e-4) << "it was not in bf16";
}
TEST(CustomStrategies, Bf16UpdatesAlmostAsFp32) {
  Bf16UpdatesAlmostAsFp32("language");
  Bf16UpdatesAlmostAsFp32("two towers");
}

// An evaluation's metrics are means over the samples of all microbatches, and its loss one over the targets.
TEST(CustomStrategies, MetricsAreMeansOverTheTargets) {
  for (const auto& [kind, metrics] : {std::pair("two towers", 2u), std::pair("autoencoder", 0u)}) {
    Trial trial = CustomTrial(kind, true);
    trial.microbatch = 2;
    const ::muster::Train train = MakeTrain(trial);
    const Inventory inventory = *models::MakeInventory(train.model());
    Config config = Configure(train, inventory)->config;
    LoadInto(config);
    auto made = Engine::Create(config);
    ASSERT_TRUE(made.ok()) << made.status();
    const auto whole = (*made)->Evaluate(TrialBatch(trial, 3, 5, 0));
    ASSERT_TRUE(whole.ok()) << whole.status();
    ASSERT_EQ(whole->metrics.size(), metrics);
    // One sample at a time.
    Evaluation mean;
    for (int64_t i = 0; i < 5; ++i) {
      const Batch all = TrialBatch(trial, 3, 5, 0);
      Batch one{.samples = 1, .global_samples = 1};
      for (const BatchTensor& tensor : inventory.task().tensors()) {
        one.tensors.Set(tensor.name(), all.tensors[tensor.name()].narrow(0, i, 1));
      }
      mean.Add((*made)->Evaluate(one).value(), 1);
    }
    mean.Divide(5);
    EXPECT_NEAR(whole->loss, mean.loss, 1e-6 * mean.loss) << kind;
    for (size_t m = 0; m < metrics; ++m) EXPECT_NEAR(whole->metrics[m], mean.metrics[m], 1e-6) << kind;
    // With weights of zero the output is zero.
    for (StateView& view : (*made)->State()) std::fill(view.values.begin(), view.values.end(), 0.0f);
    ASSERT_TRUE((*made)->Push().ok());
    const Batch batch = TrialBatch(trial, 3, 5, 0);
    const auto of_zeros = (*made)->Evaluate(batch);
    ASSERT_TRUE(of_zeros.ok()) << of_zeros.status();
    if (metrics == 0) {
      EXPECT_NEAR(of_zeros->loss, batch.tensors["signal"].square().mean().item<double>(), 1e-6) << "of all elements";
    } else {
      const at::Tensor rating = batch.tensors["rating"], clicked = batch.tensors["clicked"];
      EXPECT_NEAR(of_zeros->loss, rating.square().mean().item<double>() + std::log(2.0), 1e-6);
      EXPECT_NEAR(of_zeros->metrics[0], rating.abs().mean().item<double>(), 1e-6);
      EXPECT_NEAR(of_zeros->metrics[1], clicked.le(0.5).to(at::kDouble).mean().item<double>(), 1e-9);
    }
    EXPECT_EQ((*made)->Predict(at::zeros({1, 8})).status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

// Each token's logits are those of the whole sequence, though modules keep no cache.
TEST(CustomStrategies, GeneratesTokenByToken) {
  const Trial trial = CustomTrial("language", true);
  const ::muster::Train train = MakeTrain(trial);
  Config config = Configure(train, *models::MakeInventory(train.model()))->config;
  LoadInto(config);
  auto engine = Engine::Create(config);
  ASSERT_TRUE(engine.ok()) << engine.status();
  tasks::NextToken next(engine->get());
  std::vector<uint32_t> tokens = {5, 7, 60};
  const auto first = next.Logits(tokens);
  tokens.push_back(9);
  const auto grown = next.Logits(tokens);
  tasks::NextToken fresh(engine->get());
  const auto whole = fresh.Logits(tokens);
  ASSERT_TRUE(first.ok() && grown.ok() && whole.ok());
  EXPECT_EQ(*grown, *whole);
  EXPECT_NE(*first, *whole);
}

// ---- Images, with batch normalization, against torch::nn and torch::optim. ----

constexpr int64_t kImageSamples = 6;

struct ImageBatch {
  at::Tensor inputs, targets;
};
ImageBatch ImagesOf(int step) {
  at::manual_seed(static_cast<uint64_t>(step));
  return {torch::randn({kImageSamples, 3, 8, 8}), torch::randint(7, {kImageSamples}, torch::kLong)};
}

torch::nn::Sequential PeerOfImages() {
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3).padding(1).bias(false)),
                               torch::nn::BatchNorm2d(6), torch::nn::ReLU(), torch::nn::Conv2d(6, 5, 3),
                               torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Linear(5 * 6 * 6, 11),
                               torch::nn::Tanh(), torch::nn::Linear(11, 7));
}

Batch AsBatch(const ImageBatch& images) {
  return {.samples = kImageSamples,
          .tensors = {{models::kInputs, images.inputs}, {models::kTargets, images.targets}},
          .global_samples = kImageSamples};
}

void TrainsAsTorchDoes(const KindOptions& options, bool recompute, double label_smoothing) {
  Trial trial{
      .name = "images", .choose = Single, .microbatch = kImageSamples, .sgd = true, .model = TrialCustom(options)};
  // The normalization's unit keeps little, so it is not computed again unless the plan takes it for more.
  if (recompute) trial.model.mutable_custom()->mutable_units(1)->set_saved_bytes(1 << 20);
  ::muster::Train train = MakeTrain(trial);
  train.mutable_batch()->set_sequences(kImageSamples);
  train.mutable_optimizer()->set_weight_decay(0);
  train.set_activation_checkpointing(recompute);
  train.set_label_smoothing(label_smoothing);
  Config config = Configure(train, *models::MakeInventory(train.model()))->config;
  LoadInto(config);
  auto made = Engine::Create(config);
  ASSERT_TRUE(made.ok()) << made.status();
  Engine& engine = **made;
  torch::nn::Sequential peer = PeerOfImages();
  std::map<std::string, at::Tensor> theirs;
  for (const auto& item : peer->named_parameters()) theirs[item.key()] = item.value();
  for (const auto& item : peer->named_buffers()) theirs[item.key()] = item.value();
  for (StateView& view : engine.State()) {
    if (view.kind != "parameter") continue;
    const torch::NoGradGuard off;
    ASSERT_TRUE(theirs.count(view.tensor) > 0) << view.tensor;
    theirs[view.tensor].view(-1).copy_(
        torch::from_blob(view.values.data(), {static_cast<int64_t>(view.values.size())}, torch::kFloat));
  }
  torch::optim::SGD sgd(peer->parameters(), torch::optim::SGDOptions(kSgdRate).momentum(0.9));
  const auto loss_of = [&](const ImageBatch& images, double smoothing) {
    return torch::nn::functional::cross_entropy(
        peer->forward(images.inputs), images.targets,
        torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(smoothing));
  };
  for (int step = 0; step < 30; ++step) {
    const ImageBatch images = ImagesOf(step % 3);
    sgd.zero_grad();
    const at::Tensor loss = loss_of(images, label_smoothing);
    loss.backward();
    const double norm = torch::nn::utils::clip_grad_norm_(peer->parameters(), 1.0);
    sgd.step();
    const auto result = engine.Step(AsBatch(images), kSgdRate);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_NEAR(result->loss, loss.item<double>(), 5e-6 * loss.item<double>()) << step;
    EXPECT_NEAR(result->gradient_norm, norm, 3e-5 * norm) << step;
  }
  peer->eval();
  const ImageBatch unseen = ImagesOf(77);
  const auto evaluation = engine.Evaluate(AsBatch(unseen));
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_NEAR(evaluation->loss, loss_of(unseen, 0).item<double>(), 1e-5);
  const at::Tensor right = peer->forward(unseen.inputs).argmax(1).eq(unseen.targets).to(torch::kDouble).mean();
  EXPECT_NEAR(evaluation->metrics.at(0), right.item<double>(), 1e-9);
  // Running statistics too, also if forwards were computed again.
  for (const StateView& view : engine.State()) {
    if (view.kind != "buffer") continue;
    const at::Tensor& buffer = theirs.at(view.tensor);
    for (size_t i = 0; i < view.values.size(); ++i) {
      EXPECT_NEAR(view.values[i], buffer[static_cast<int64_t>(i)].item<float>(), 1e-5) << view.tensor;
    }
  }
}

TEST(CustomStrategies, TrainsAsTorchsModulesAndOptimizerDo) {
  TrainsAsTorchDoes({{"kind", "images"}}, false, 0);
  TrainsAsTorchDoes({{"kind", "images"}, {"min_parameters", "100000"}}, false, 0);  // one unit
  TrainsAsTorchDoes({{"kind", "images by type"}}, false, 0.1);
  TrainsAsTorchDoes({{"kind", "images"}}, true, 0.1);
  TrainsAsTorchDoes({{"kind", "images with a loss"}}, false, 0.1);
}

}  // namespace
}  // namespace muster::engine
