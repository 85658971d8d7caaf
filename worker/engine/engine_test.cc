#include "worker/engine/engine.h"

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <string_view>

#include "absl/strings/match.h"
#include "models/inventory.h"
#include "testing/optimizers.h"
#include "worker/engine/attention.h"
#include "worker/engine/configure.h"
#include "worker/engine/cpu_allocator.h"
#include "worker/engine/initialise.h"
#include "worker/tasks/language_model.h"

namespace muster::engine {
namespace {

constexpr uint64_t kContext = 16, kVocabulary = 61;

void Compile(Config& config) { config = Configure(config.train, config.inventory)->config; }

Config Small(uint32_t sequences, uint32_t microbatch) {
  Config config;
  Gpt2& g = *config.train.mutable_model()->mutable_gpt2();
  g.set_layers(2), g.set_heads(2), g.set_width(36), g.set_vocabulary(kVocabulary), g.set_context(kContext);
  config.train.mutable_strategy()->mutable_single();
  config.train.mutable_batch()->set_sequences(sequences);
  config.train.mutable_batch()->set_microbatch(microbatch);
  Optimizer& o = *config.train.mutable_optimizer();
  o.mutable_adamw()->set_beta1(0.9);
  o.mutable_adamw()->set_beta2(0.999);
  o.mutable_adamw()->set_eps(1e-8);
  o.set_weight_decay(0.1);
  o.set_clip_norm(1.0);
  config.train.set_seed(3);
  config.inventory = *models::MakeInventory(config.train.model());
  Compile(config);
  return config;
}

struct Tokens {
  explicit Tokens(uint64_t sequences, int seed = 1) {
    std::mt19937 random(seed);
    values.resize(sequences * (kContext + 1));
    for (uint32_t& t : values) t = static_cast<uint32_t>(random() % kVocabulary);
    batch = tasks::TokenBatch(sequences, values, sequences);
  }
  std::vector<uint32_t> values;
  Batch batch;
};

std::vector<float> Weights(Engine& engine) {
  std::vector<float> all;
  for (const StateView& view : engine.State()) all.insert(all.end(), view.values.begin(), view.values.end());
  return all;
}

StateView& Find(std::vector<StateView>& views, const std::string& kind, const std::string& tensor) {
  return *std::find_if(views.begin(), views.end(),
                       [&](const StateView& v) { return v.kind == kind && v.tensor == tensor; });
}

void Choose(const std::string& kind, Config& config) {
  Optimizer& o = *config.train.mutable_optimizer();
  o.MergeFrom(OptimizerOf(kind, 1e-3));
}

TEST(Engine, FirstLossIsThatOfKnowingNothing) {
  auto engine = Engine::Create(Small(8, 8)).value();
  const Tokens tokens(8);
  EXPECT_NEAR(engine->Evaluate(tokens.batch).value().loss, std::log(static_cast<double>(kVocabulary)), 0.05);
  EXPECT_EQ(engine->step(), 0u);
}

TEST(Engine, OnACpuIsAlwaysDeterministic) {
  std::vector<std::vector<float>> weights;
  for (const std::optional<bool> deterministic : {std::optional<bool>(), std::optional(true), std::optional(false)}) {
    Config config = Small(4, 2);
    if (deterministic.has_value()) config.train.set_deterministic(*deterministic);
    at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
    auto engine = Engine::Create(config).value();
    EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
    EXPECT_FALSE(at::globalContext().deterministicAlgorithmsWarnOnly())
        << "with it attention's backward on a GPU depends on timing";
    const Tokens tokens(4);
    ASSERT_TRUE(engine->Step(tokens.batch, 1e-3, {}).ok());
    weights.push_back(Weights(*engine));
  }
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_EQ(weights[0], weights[2]);
}

TEST(Engine, ComputesInTf32OnlyIfTheJobSaysSo) {
  Config config = Small(4, 2);
  for (const bool tf32 : {false, true, false}) {
    config.train.mutable_precision()->set_tf32(tf32);
    ASSERT_TRUE(Engine::Create(config).ok());
    EXPECT_EQ(at::globalContext().allowTF32CuBLAS(), tf32);
  }
}

TEST(Engine, OnAGpuIsDeterministicUnlessTheJobSaysOtherwise) {
  Train train;
  EXPECT_TRUE(IsDeterministic(train)) << "as of a job that was stored before the field existed";
  train.set_deterministic(false);
  EXPECT_FALSE(IsDeterministic(train));
  train.set_deterministic(true);
  EXPECT_TRUE(IsDeterministic(train));
}

TEST(Engine, ReportsEachOpInOrder) {
  struct RecordingListener : OpListener {
    void Begin(int32_t index, OpKind kind) override { begun.emplace_back(index, kind); }
    void WaitFor(int32_t, OpKind) override { ++waits; }
    void EndWait(int32_t, OpKind) override {}
    void EndStep() override { ++steps; }
    std::vector<std::pair<int32_t, OpKind>> begun;
    int waits = 0, steps = 0;
  } listener;
  Config config = Small(8, 4);
  config.progress = &listener;
  auto engine = Engine::Create(config).value();
  const Tokens tokens(8);
  ASSERT_TRUE(engine->Evaluate(tokens.batch).ok());
  EXPECT_TRUE(listener.begun.empty()) << "evaluation is no step";
  ASSERT_TRUE(engine->Step(tokens.batch, 1e-3).ok());
  ASSERT_EQ(listener.begun.size(), config.schedule.ops.size());
  for (size_t i = 0; i < listener.begun.size(); ++i) {
    EXPECT_EQ(listener.begun[i], std::pair(static_cast<int32_t>(i), config.schedule.ops[i].kind));
  }
  EXPECT_EQ(listener.steps, 1);
  EXPECT_EQ(listener.waits, 0) << "a single rank never waits";
  EXPECT_EQ(engine->Step(tokens.batch, 1e30).status().code(), absl::StatusCode::kOk);
  EXPECT_FALSE(engine->Step(tokens.batch, 1e-3).ok()) << "the weights have diverged";
  EXPECT_EQ(listener.steps, 3) << "a failed step ends too";
}

TEST(Engine, LearnsABatchByHeart) {
  auto engine = Engine::Create(Small(4, 4)).value();
  const Tokens tokens(4);
  double last = 0;
  for (int i = 0; i < 200; ++i) last = engine->Step(tokens.batch, 3e-3).value().loss;
  EXPECT_LT(last, 0.5);
  EXPECT_EQ(engine->step(), 200u);
  // Sampling sees the same model: the most likely next token is the one that was learned.
  const auto logits = tasks::NextToken(engine.get()).Logits(absl::MakeSpan(tokens.values).first(kContext)).value();
  EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), tokens.values[kContext]);
}

// A growing text computes only new tokens; a text that does not extend the last one, or new weights, start from zero.
TEST(Engine, LogitsOfAGrowingTextAreThoseOfTheWhole) {
  auto growing = Engine::Create(Small(4, 2)).value(), fresh = Engine::Create(Small(4, 2)).value();
  tasks::NextToken next(growing.get());
  std::vector<uint32_t> text;
  const auto expect_equal = [&](const std::vector<uint32_t>& tokens, const char* what) {
    const std::vector<float> ours = next.Logits(tokens).value();
    const std::vector<float> right = tasks::NextToken(fresh.get()).Logits(tokens).value();
    for (size_t i = 0; i < right.size(); ++i) ASSERT_NEAR(ours[i], right[i], 1e-5) << what << ", " << tokens.size();
  };
  for (uint32_t i = 0; i < kContext; ++i) {
    text.push_back(i * 7 % kVocabulary);
    expect_equal(text, "one more");
  }
  expect_equal(text, "the same again");
  expect_equal({text.begin() + 1, text.end()}, "the window moved");
  expect_equal({text.begin(), text.begin() + 5}, "shorter");
  expect_equal({text.begin(), text.begin() + 9}, "some more");
  expect_equal({text.begin() + 3, text.end()}, "another, and longer");
  const std::vector<float> before = next.Logits(text).value();
  for (auto* engine : {&growing, &fresh}) ASSERT_TRUE((*engine)->Step(Tokens(4).batch, 1e-2).ok());
  std::vector<uint32_t> other(text.begin(), text.begin() + 9);
  other.back() = 60;
  expect_equal(other, "another last token");
  ASSERT_TRUE(next.Logits({text.data(), kContext - 1}).ok());
  for (auto* engine : {&growing, &fresh}) ASSERT_TRUE((*engine)->Step(Tokens(4).batch, 1e-2).ok());
  expect_equal(text, "other weights");
  EXPECT_NE(next.Logits(text).value(), before);
}

// Loss, norm and weights of the device's own decisions are those of the host's, clipped or not.
TEST(Engine, DecidingOnTheDeviceGivesTheSameSteps) {
  for (const double clip : {0.05, 1e9}) {
    for (const std::string kind : {"adamw", "sgd", "lion", "muon", "adafactor"}) {
      Config config = Small(4, 2);
      config.train.mutable_optimizer()->set_clip_norm(clip);
      Choose(kind, config);
      Compile(config);
      auto host = Engine::Create(config).value();
      config.decide_on_device = true;
      auto device = Engine::Create(config).value();
      for (int i = 0; i < 10; ++i) {
        const Tokens tokens(4, i);
        const StepResult a = host->Step(tokens.batch, 1e-2).value(), b = device->Step(tokens.batch, 1e-2).value();
        const double rounding = kind == "muon" ? 20 : 1;  // an update in bf16
        EXPECT_NEAR(a.loss, b.loss, 1e-6 * rounding * a.loss);
        EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 1e-5 * rounding * a.gradient_norm);
      }
    }
  }
}

TEST(Engine, DecidingOnTheDeviceUpdatesNothingByNumbersThatAreNotFinite) {
  Config config = Small(2, 2);
  config.decide_on_device = true;
  auto engine = Engine::Create(config).value();
  ASSERT_TRUE(engine->Step(Tokens(2).batch, 1e-3).ok());
  auto state = engine->State();
  float& bias = Find(state, "parameter", "ln_f.bias").values[0];
  const float good = bias;
  bias = std::nanf("");
  ASSERT_TRUE(engine->Push().ok());
  const absl::Status status = engine->Step(Tokens(2).batch, 1e-3).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(IsNonFinite(status)) << status;
  EXPECT_FALSE(IsNonFinite(absl::OutOfRangeError(status.message())));
  EXPECT_EQ(engine->step(), 1u);
  bias = good;
  ASSERT_TRUE(engine->Push().ok());
  for (const float x : Weights(*engine)) ASSERT_TRUE(std::isfinite(x));
  EXPECT_TRUE(engine->Step(Tokens(2).batch, 1e-3).ok());
}

class Bf16Engine : public testing::TestWithParam<units::Bf16Gemms> {};
INSTANTIATE_TEST_SUITE_P(Engine, Bf16Engine, testing::Values(units::Bf16Gemms::kNative, units::Bf16Gemms::kPanels));

// Master weights, gradients and state stay fp32: what is learned in small steps is not lost to 8 bits.
TEST_P(Bf16Engine, TrainsAsInFp32) {
  Config config = Small(4, 2);
  auto exact = Engine::Create(config).value();
  config.train.mutable_precision()->set_compute(DTYPE_BF16);
  config.bf16_gemms = GetParam();
  auto narrow = Engine::Create(config).value();
  const Tokens tokens(4);
  StepResult b;
  for (int i = 0; i < 150; ++i) {
    b = narrow->Step(tokens.batch, 3e-3).value();
    if (i < 20) {
      const StepResult a = exact->Step(tokens.batch, 3e-3).value();
      EXPECT_NEAR(b.loss, a.loss, 0.01 * a.loss) << i;
      // AdamW follows signs, so weights and their gradients part sooner than losses.
      if (i < 3) {
        EXPECT_NEAR(b.gradient_norm, a.gradient_norm, 0.03 * a.gradient_norm) << i;
      }
      EXPECT_NE(b.loss, a.loss) << "it was not computed in bf16";
    }
  }
  EXPECT_LT(b.loss, 0.6);
  EXPECT_NEAR(narrow->Evaluate(tokens.batch).value().loss, b.loss, 0.1);
  const auto logits = tasks::NextToken(narrow.get()).Logits(absl::MakeSpan(tokens.values).first(kContext)).value();
  EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), tokens.values[kContext]);

  // Steps too small for bf16 still move the weights, and a checkpoint of them is the fp32 ones.
  const std::vector<float> before = Weights(*narrow);
  ASSERT_TRUE(narrow->Step(tokens.batch, 1e-6).ok());
  const std::vector<float> after = Weights(*narrow);
  size_t moved = 0, between = 0;
  for (size_t i = 0; i < after.size(); ++i) {
    moved += after[i] != before[i];
    uint32_t bits;
    std::memcpy(&bits, &after[i], sizeof bits);
    between += (bits & 0xffff) != 0;
  }
  EXPECT_GT(moved, after.size() / 3);
  EXPECT_GT(between, after.size() / 3);
}

Config InFp16(Config config, double loss_scale) {
  config.train.mutable_precision()->set_compute(DTYPE_FP16);
  LossScaling& scaling = *config.train.mutable_precision()->mutable_loss_scaling();
  scaling.set_initial(loss_scale), scaling.set_minimum(std::min(1.0, loss_scale));
  scaling.set_growth(2), scaling.set_backoff(0.5), scaling.set_growth_interval(1000);
  return config;
}

// By the CPU's own row operations, those of GPUs and the operators of LibTorch; with 11 bits instead of bf16's 8.
TEST(Engine, TrainsInFp16AsInFp32) {
  for (const int way : {0, 1, 2}) {
    Config config = Small(4, 2);
    auto exact = Engine::Create(config).value();
    config.device_rows = config.decide_on_device = way == 1, config.portable = way == 2;
    auto narrow = Engine::Create(InFp16(config, 65536)).value();
    const Tokens tokens(4);
    StepResult b;
    for (int i = 0; i < 150; ++i) {
      b = narrow->Step(tokens.batch, 3e-3).value();
      EXPECT_FALSE(b.skipped) << i;
      if (i >= 20) continue;
      const StepResult a = exact->Step(tokens.batch, 3e-3).value();
      EXPECT_NEAR(b.loss, a.loss, 2e-3 * a.loss) << i;
      if (i < 3) {
        EXPECT_NEAR(b.gradient_norm, a.gradient_norm, 5e-3 * a.gradient_norm) << i;
      }
      EXPECT_NE(b.loss, a.loss) << "it was not computed in fp16";
    }
    EXPECT_LT(b.loss, 0.6);
    const auto logits = tasks::NextToken(narrow.get()).Logits(absl::MakeSpan(tokens.values).first(kContext)).value();
    EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), tokens.values[kContext]);
  }
}

// Why there is a scale: divided by the targets, most gradients of a large batch are below fp16's least number.
TEST(Engine, SmallGradientsNeedALossScale) {
  const auto norm = [](double scale) {
    Config config = InFp16(Small(4, 4), scale);
    Batch batch = Tokens(4).batch;
    batch.global_samples = 4 << 16;  // of many ranks
    return Engine::Create(config).value()->Step(batch, 1e-3)->gradient_norm;
  };
  Batch batch = Tokens(4).batch;
  batch.global_samples = 4 << 16;
  const double exact = Engine::Create(Small(4, 4)).value()->Step(batch, 1e-3)->gradient_norm;
  EXPECT_NEAR(norm(0x1p22), exact, 0.01 * exact);
  EXPECT_GT(std::abs(norm(1) - exact), 0.1 * exact) << "nothing was lost without the scale";
}

// A scale that is too high costs steps and nothing else: after them, training is the same as with the right one from
// the start, AdamW's bias correction included.
TEST(Engine, StepsThatOverflowOnlyLowerTheLossScale) {
  for (const int way : {0, 1, 2}) {
    Config config = Small(4, 2);
    config.decide_on_device = way == 1, config.streams = way == 2;
    auto high = Engine::Create(InFp16(config, 0x1p30)).value();
    const Tokens tokens(4);
    ASSERT_TRUE(high->Pull().ok());
    const std::vector<float> initial = Weights(*high);
    StepResult result = high->Step(tokens.batch, 1e-3).value();
    EXPECT_TRUE(result.skipped);
    EXPECT_EQ(result.loss_scale, 0x1p30);
    EXPECT_FALSE(std::isfinite(result.gradient_norm));
    uint64_t skipped = 0;
    while (result.skipped && skipped < 30) {
      EXPECT_EQ(high->update_state().skipped_steps(), ++skipped);
      EXPECT_EQ(high->update_state().loss_scale(), std::ldexp(1.0, 30 - static_cast<int>(skipped)));
      EXPECT_EQ(high->step(), skipped) << "it counts as a step";
      ASSERT_TRUE(high->Pull().ok());
      EXPECT_EQ(Weights(*high), initial);
      result = high->Step(tokens.batch, 1e-3).value();
    }
    ASSERT_FALSE(result.skipped);
    auto right = Engine::Create(InFp16(config, high->update_state().loss_scale())).value();
    EXPECT_EQ(right->Step(tokens.batch, 1e-3)->loss, result.loss);
    for (int i = 0; i < 5; ++i) {
      const StepResult a = right->Step(tokens.batch, 1e-3).value(), b = high->Step(tokens.batch, 1e-3).value();
      EXPECT_EQ(a.loss, b.loss);
      EXPECT_EQ(a.gradient_norm, b.gradient_norm);
    }
    ASSERT_TRUE(right->Pull().ok() && high->Pull().ok());
    EXPECT_EQ(Weights(*right), Weights(*high));
    // What a checkpoint keeps: the scale, and how many updates were made.
    auto resumed = Engine::Create(InFp16(config, 0x1p30)).value();
    std::vector<StateView> from = high->State(), to = resumed->State();
    for (size_t i = 0; i < from.size(); ++i) {
      std::copy(from[i].values.begin(), from[i].values.end(), to[i].values.begin());
    }
    ASSERT_TRUE(resumed->Push().ok());
    ASSERT_TRUE(resumed->SetProgress(high->step(), high->update_state()).ok());
    EXPECT_EQ(resumed->Step(tokens.batch, 1e-3)->loss, high->Step(tokens.batch, 1e-3)->loss);
    ASSERT_TRUE(resumed->Pull().ok() && high->Pull().ok());
    EXPECT_EQ(Weights(*resumed), Weights(*high));
  }
}

TEST(Engine, SkipsAsManyStepsThatAreNotFiniteAsTheJobSays) {
  for (const bool device : {false, true}) {
    Config config = Small(2, 2);
    config.train.mutable_on_nonfinite()->mutable_skip()->set_steps(2);
    config.decide_on_device = device;
    auto engine = Engine::Create(config).value();
    ASSERT_TRUE(engine->Step(Tokens(2).batch, 1e-3).ok());
    std::vector<StateView> state = engine->State();
    float& bias = Find(state, "parameter", "ln_f.bias").values[0];
    const float good = std::exchange(bias, std::nanf(""));
    const std::vector<float> before = Weights(*engine);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(engine->Step(Tokens(2).batch, 1e-3).value().skipped);
    EXPECT_EQ(engine->step(), 3u);
    const absl::Status third = engine->Step(Tokens(2).batch, 1e-3).status();
    EXPECT_EQ(third.code(), absl::StatusCode::kOutOfRange);
    EXPECT_TRUE(absl::StrContains(third.message(), "after 2 skipped steps in a row")) << third;
    const std::vector<float> after = Weights(*engine);
    EXPECT_EQ(std::memcmp(before.data(), after.data(), 4 * before.size()), 0);
    bias = good;
    EXPECT_FALSE(engine->Step(Tokens(2).batch, 1e-3).value().skipped);
    EXPECT_EQ(engine->update_state().skipped_steps(), 2u);
    EXPECT_EQ(engine->update_state().skipped_in_a_row(), 0u);
  }
}

// Both round at the same points, so the runs differ by single roundings only.
TEST(Engine, Bf16ThroughPanelsFollowsTheNativeRun) {
  Config config = Small(4, 2);
  config.train.mutable_precision()->set_compute(DTYPE_BF16);
  config.bf16_gemms = units::Bf16Gemms::kNative;
  auto native = Engine::Create(config).value();
  config.bf16_gemms = units::Bf16Gemms::kPanels;
  auto panels = Engine::Create(config).value();
  const Tokens tokens(4);
  for (int i = 0; i < 20; ++i) {
    const StepResult a = native->Step(tokens.batch, 3e-3).value(), b = panels->Step(tokens.batch, 3e-3).value();
    EXPECT_NEAR(b.loss, a.loss, 3e-3 * a.loss) << i;
  }
}

TEST(Engine, SaysHowGemmsAreComputed) {
  Config config = Small(4, 2);
  EXPECT_EQ(Engine::Create(config).value()->Notes(), std::vector<std::string>{units::ChooseFp32Gemms().log});
  config.train.mutable_precision()->set_compute(DTYPE_BF16);
  config.bf16_gemms = units::Bf16Gemms::kNative;
  EXPECT_EQ(Engine::Create(config).value()->Notes(), std::vector<std::string>{});
  // Panels are multiplied as fp32 matrices are.
  config.bf16_gemms = units::Bf16Gemms::kPanels;
  EXPECT_EQ(Engine::Create(config).value()->Notes(), std::vector<std::string>{units::ChooseFp32Gemms().log});
  config.bf16_gemms.reset();
  EXPECT_EQ(Engine::Create(config).value()->Notes().at(0), units::ChooseBf16Gemms().log);
  const auto fp16 = Engine::Create(InFp16(Small(4, 2), 1024)).value();
  ASSERT_EQ(fp16->Notes().size(), 2u);
  EXPECT_EQ(fp16->Notes()[0], units::ChooseFp32Gemms().log);
  EXPECT_TRUE(absl::StrContains(fp16->Notes()[1], "fp16 GEMMs: through fp32 panels"));
}

// After Push() the engine computes with the new parameters, even where it keeps a copy.
TEST(Engine, Bf16ComputesWithLoadedParameters) {
  Config config = Small(2, 2);
  config.train.mutable_precision()->set_compute(DTYPE_BF16);
  auto trained = Engine::Create(config).value(), loaded = Engine::Create(config).value();
  const Tokens tokens(2);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(trained->Step(tokens.batch, 1e-2).ok());
  auto from = trained->State(), to = loaded->State();
  for (size_t i = 0; i < from.size(); ++i)
    std::copy(from[i].values.begin(), from[i].values.end(), to[i].values.begin());
  ASSERT_TRUE(loaded->Push().ok());
  EXPECT_EQ(loaded->Evaluate(tokens.batch).value().loss, trained->Evaluate(tokens.batch).value().loss);
  EXPECT_EQ(loaded->Step(tokens.batch, 1e-2)->loss, trained->Step(tokens.batch, 1e-2)->loss);
}

int64_t& FlatCasts() {
  static thread_local int64_t elements = 0;
  return elements;
}

// Elements of flat fp32 buffers that operators of a step cast into others, as storage keeps parameters.
int64_t CastInAStep(Engine& engine) {
  const auto count = [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    if (std::string_view(function.name()) != "aten::copy_") return nullptr;
    const at::Tensor to = function.inputs()[0].toTensor(), from = function.inputs()[1].toTensor();
    if (to.dim() == 1 && from.scalar_type() == at::kFloat && to.scalar_type() != at::kFloat) FlatCasts() += to.numel();
    return nullptr;
  };
  FlatCasts() = 0;
  const at::CallbackHandle handle = at::addGlobalCallback(at::RecordFunctionCallback(count).needsInputs(true));
  EXPECT_TRUE(engine.Step(Tokens(4).batch, 1e-2).ok());
  at::removeCallback(handle);
  return FlatCasts();
}

// LibTorch's AdamW needs a pass over the master weights to cast them, the program of GPUs none.
TEST(Engine, TheProgramOfAdamWLeavesNothingToCast) {
  Config bf16 = Small(4, 2);
  bf16.train.mutable_precision()->set_compute(DTYPE_BF16);
  Compile(bf16);
  for (Config config : {bf16, InFp16(Small(4, 2), 1024)}) {
    auto operators = Engine::Create(config).value();
    config.device_rows = true;
    auto program = Engine::Create(config).value();
    EXPECT_GE(CastInAStep(*operators), static_cast<int64_t>(models::Parameters(config.inventory)));
    EXPECT_EQ(CastInAStep(*program), 0);
  }
}

TEST(Engine, AccumulationChangesOnlyTheOrderOfSums) {
  auto whole = Engine::Create(Small(7, 7)).value(), parts = Engine::Create(Small(7, 2)).value();
  for (int i = 0; i < 10; ++i) {
    const Tokens tokens(7, i);
    const StepResult a = whole->Step(tokens.batch, 1e-3).value(), b = parts->Step(tokens.batch, 1e-3).value();
    EXPECT_NEAR(a.loss, b.loss, 5e-6 * a.loss);
    EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 3e-5 * a.gradient_norm);
  }
}

TEST(Engine, EqualRunsAreBitEqual) {
  auto a = Engine::Create(Small(4, 2)).value(), b = Engine::Create(Small(4, 2)).value();
  for (int i = 0; i < 5; ++i) {
    const Tokens tokens(4, i);
    ASSERT_EQ(a->Step(tokens.batch, 1e-3).value().loss, b->Step(tokens.batch, 1e-3).value().loss);
  }
  EXPECT_EQ(Weights(*a), Weights(*b));
}

class StateOfOptimizers : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Engine, StateOfOptimizers, testing::Values("adamw", "sgd", "lion", "muon", "adafactor"));

TEST_P(StateOfOptimizers, ContinuesBitEqual) {
  const auto config = [](uint64_t seed) {
    Config chosen = Small(4, 4);
    Choose(GetParam(), chosen);
    chosen.train.set_seed(seed);
    Compile(chosen);
    return chosen;
  };
  auto whole = Engine::Create(config(3)).value(), first = Engine::Create(config(3)).value();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(whole->Step(Tokens(4, i).batch, 1e-3).ok());
    ASSERT_TRUE(first->Step(Tokens(4, i).batch, 1e-3).ok());
  }
  auto second = Engine::Create(config(99)).value();  // whatever it began with is overwritten
  ASSERT_TRUE(first->Pull().ok());
  std::vector<StateView> from = first->State(), to = second->State();
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(from[i].kind, to[i].kind);
    ASSERT_EQ(from[i].tensor, to[i].tensor);
    std::copy(from[i].values.begin(), from[i].values.end(), to[i].values.begin());
  }
  ASSERT_TRUE(second->Push().ok());
  ASSERT_TRUE(second->SetProgress(first->step(), first->update_state()).ok());
  for (int i = 3; i < 6; ++i) {
    ASSERT_EQ(whole->Step(Tokens(4, i).batch, 1e-3)->loss, second->Step(Tokens(4, i).batch, 1e-3)->loss);
  }
  EXPECT_EQ(Weights(*whole), Weights(*second));
}

// A table that cuts a matrix is another placement's, or damaged.
TEST(Engine, RefusesATableThatCutsWhatIsUpdatedWhole) {
  Config config = Small(4, 4);
  Choose("muon", config);
  config.train.mutable_strategy()->mutable_fsdp()->set_placement(PLACEMENT_EVEN);
  config.train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_FULL_SHARD);
  const absl::Status status = Engine::Create(Configure(config.train, config.inventory, 2, 0)->config).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "use placement: whole")) << status;
}

// The gradient of every kind of tensor against finite differences of the loss, by plain SGD without momentum: the
// update of one step with learning rate 1 is the gradient.
TEST(Engine, GradientsAreFiniteDifferences) {
  Config config = Small(3, 2);
  config.train.mutable_optimizer()->mutable_sgd()->set_momentum(0);
  config.train.mutable_optimizer()->set_weight_decay(0);
  config.train.mutable_optimizer()->set_clip_norm(0);
  Compile(config);
  const Tokens tokens(3);
  auto moved = Engine::Create(config).value(), probe = Engine::Create(config).value();
  ASSERT_TRUE(moved->Step(tokens.batch, 1.0).ok());
  std::vector<StateView> after = moved->State(), at = probe->State();
  for (const char* name : {"wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.attn.c_attn.weight",
                           "h.1.attn.c_attn.bias", "h.1.attn.c_proj.weight", "h.0.ln_2.bias", "h.1.mlp.c_fc.weight",
                           "h.0.mlp.c_proj.bias", "ln_f.weight", "ln_f.bias"}) {
    StateView &now = Find(at, "parameter", name), &then = Find(after, "parameter", name);
    // Along the gradient itself, where the difference is largest: d loss / d t = |g|^2.
    std::vector<double> gradient(now.values.size());
    double square = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = static_cast<double>(now.values[i]) - then.values[i];
      square += gradient[i] * gradient[i];
    }
    ASSERT_GT(square, 0) << name;
    const double t = 1e-2 / std::sqrt(square);
    const std::vector<float> origin(now.values.begin(), now.values.end());
    const auto loss_at = [&](double scale) {
      for (size_t i = 0; i < gradient.size(); ++i) now.values[i] = static_cast<float>(origin[i] + scale * gradient[i]);
      return probe->Evaluate(tokens.batch).value().loss;
    };
    const double slope = (loss_at(t) - loss_at(-t)) / (2 * t);
    std::copy(origin.begin(), origin.end(), now.values.begin());
    EXPECT_NEAR(slope / square, 1.0, 0.03) << name;
  }
}

// One step of plain SGD: what is frozen stays, the rest moves as if nothing were.
TEST(Engine, FreezingChangesNothingElse) {
  Config config = Small(4, 2);
  config.train.mutable_optimizer()->mutable_sgd()->set_momentum(0);
  config.train.mutable_optimizer()->set_clip_norm(0);
  for (const int way : {0, 1, 2}) {
    Config other = config;
    other.portable = way == 1, other.device_rows = way == 2;
    auto whole = Engine::Create(other).value(), untrained = Engine::Create(other).value();
    for (const char* pattern : {"wte.weight", "*.c_attn.*", "h.1.*", "!h.1.mlp.c_proj.bias"}) {
      other.train.add_freeze(pattern);
    }
    other.inventory = *models::MakeInventory(other.train);
    Compile(other);
    auto partly = Engine::Create(other).value();
    const Tokens tokens(4);
    const double right = whole->Step(tokens.batch, 0.1)->loss;
    ASSERT_NEAR(partly->Step(tokens.batch, 0.1)->loss, right, 1e-6 * right) << way;
    std::vector<StateView> a = whole->State(), b = partly->State(), initial = untrained->State();
    int moved = 0, stayed = 0;
    for (const StateView& view : b) {
      const bool frozen = view.tensor == "wte.weight" || absl::StrContains(view.tensor, "c_attn") ||
                          (view.tensor.starts_with("h.1.") && view.tensor != "h.1.mlp.c_proj.bias");
      (frozen ? stayed : moved) += 1;
      const absl::Span<const float> now = view.values, then = Find(initial, "parameter", view.tensor).values,
                                    whole_now = Find(a, "parameter", view.tensor).values;
      EXPECT_EQ(now == then, frozen) << way << view.tensor;
      double off = 0, change = 0;
      for (size_t i = 0; i < now.size(); ++i) {
        off = std::max<double>(off, std::abs(now[i] - whole_now[i]));
        change = std::max<double>(change, std::abs(whole_now[i] - then[i]));
      }
      if (!frozen) {
        EXPECT_LE(off, 1e-5 * change) << way << view.tensor;
      }
    }
    EXPECT_GT(moved, 10);
    EXPECT_GT(stayed, 12);
  }
}

TEST(Engine, FrozenTensorsHaveNoOptimizerState) {
  Config config = Small(4, 2);
  config.train.add_freeze("*");
  config.train.add_freeze("!ln_f.*");
  config.inventory = *models::MakeInventory(config.train);
  Compile(config);
  auto engine = Engine::Create(config).value();
  std::map<std::string, int> kinds;
  for (const StateView& view : engine->State()) ++kinds[view.kind];
  EXPECT_EQ(kinds["exp_avg"], 2);
  EXPECT_EQ(kinds["exp_avg_sq"], 2);
  EXPECT_EQ(kinds["parameter"], 28);
  ASSERT_TRUE(engine->Step(Tokens(4).batch, 1e-3).ok());
}

TEST(Engine, ClippingBoundsTheUpdateAndReportsTheNormBefore) {
  Config free = Small(4, 4);
  free.train.mutable_optimizer()->mutable_sgd()->set_momentum(0);
  free.train.mutable_optimizer()->set_weight_decay(0);
  Config clipped = free;
  clipped.train.mutable_optimizer()->set_clip_norm(0.01);
  free.train.mutable_optimizer()->set_clip_norm(1e9);
  const Tokens tokens(4);
  auto a = Engine::Create(free).value(), b = Engine::Create(clipped).value();
  const std::vector<float> start = Weights(*a);
  const double norm = a->Step(tokens.batch, 1.0)->gradient_norm;
  EXPECT_EQ(b->Step(tokens.batch, 1.0)->gradient_norm, norm);
  const auto moved = [&](Engine& e) {
    double square = 0;
    const std::vector<float> now = Weights(e);
    for (size_t i = 0; i < start.size(); ++i) square += std::pow(now[i] - start[i], 2);
    return std::sqrt(square);
  };
  EXPECT_NEAR(moved(*a), norm, 1e-4 * norm);
  EXPECT_NEAR(moved(*b), 0.01, 1e-5);
}

TEST(Engine, ALossThatIsNotFiniteUpdatesNothing) {
  auto engine = Engine::Create(Small(2, 2)).value();
  std::vector<StateView> state = engine->State();
  Find(state, "parameter", "ln_f.weight").values[0] = std::nanf("");
  const std::vector<float> before = Weights(*engine);
  const absl::Status status = engine->Step(Tokens(2).batch, 1e-3).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(absl::StrContains(status.message(), "step 1")) << status;
  const std::vector<float> after = Weights(*engine);
  EXPECT_EQ(std::memcmp(before.data(), after.data(), 4 * before.size()), 0);
  EXPECT_EQ(engine->step(), 0u);
}

// A steady step makes no system allocations, and its peak is the peak that it reports.
TEST(Engine, ASteadyStepTakesNothingFromTheSystem) {
  auto engine = Engine::Create(Small(4, 2)).value();
  const Tokens tokens(4);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->Step(tokens.batch, 1e-3).ok());
#if !defined(__SANITIZE_ADDRESS__)
  const uint64_t asked = CpuMemoryUse().system_allocations;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->Step(tokens.batch, 1e-3).ok());
  EXPECT_EQ(CpuMemoryUse().system_allocations, asked);
#endif
  const uint64_t arenas = 4 * 4 * models::Parameters(*models::MakeInventory(Small(4, 2).train.model()));
  EXPECT_GT(engine->peak_memory_bytes(), arenas);
}

TEST(Engine, EvaluatesInTheStepsOfTraining) {
  Config config = Small(2, 2);
  config.train.mutable_batch()->clear_microbatch();
  Compile(config);
  auto engine = Engine::Create(config).value(), whole = Engine::Create(Small(9, 9)).value();
  const Tokens tokens(9);
  EXPECT_NEAR(engine->Evaluate(tokens.batch).value().loss, whole->Evaluate(tokens.batch).value().loss, 1e-6);
}

TEST(Engine, DivergedWeightsAreAnErrorEverywhere) {
  auto engine = Engine::Create(Small(2, 2)).value();
  std::vector<StateView> state = engine->State();
  Find(state, "parameter", "ln_f.bias").values[0] = std::nanf("");
  const Tokens tokens(2);
  EXPECT_EQ(engine->Evaluate(tokens.batch).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(tasks::NextToken(engine.get()).Logits(absl::MakeSpan(tokens.values).first(3)).status().code(),
            absl::StatusCode::kOutOfRange);
}

TEST(Engine, RefusesABatchThatItWouldOnlyTrainInPart) {
  auto engine = Engine::Create(Small(4, 2)).value();
  EXPECT_TRUE(engine->Step(Tokens(3).batch, 1e-3).ok());  // a last batch may be short
  const absl::Status status = engine->Step(Tokens(5).batch, 1e-3).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "hold 4")) << status;
  EXPECT_EQ(engine->Step(Tokens(4).batch, std::nan("")).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->step(), 1u);
}

TEST(Engine, RefusesWhatItCannotRun) {
  Config config = Small(2, 2);
  config.table.set_shards(0);
  EXPECT_EQ(Engine::Create(config).status().code(), absl::StatusCode::kInvalidArgument);
  config = Small(2, 2);
  config.evaluation.ops.pop_back();
  EXPECT_EQ(Engine::Create(config).status().code(), absl::StatusCode::kInvalidArgument);
  config = Small(2, 2);
  const Op snapshot{.kind = OpKind::kSnapshot};
  config.schedule.ops.push_back(snapshot);
  EXPECT_EQ(Engine::Create(config).status(), absl::UnimplementedError("this engine cannot execute Snapshot"));
  config = Small(2, 2);
  config.evaluation.ops.push_back(snapshot);
  EXPECT_EQ(Engine::Create(config).status(),
            absl::UnimplementedError("this engine cannot execute evaluation, Snapshot"));
#ifndef MUSTER_CUDA
  config = Small(2, 2);
  config.cuda = true;
  const absl::Status status = Engine::Create(config).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "--config=cuda")) << status;
#endif
}

TEST(Engine, RefusesWhatDoesNotBelongTogether) {
  Config config = Small(2, 2);
  config.table.mutable_units()->RemoveLast();
  EXPECT_EQ(Engine::Create(config).status().code(), absl::StatusCode::kInvalidArgument);
  config = Small(2, 2);
  config.schedule.ops.pop_back();
  EXPECT_EQ(Engine::Create(config).status().code(), absl::StatusCode::kInvalidArgument);
  auto engine = Engine::Create(Small(2, 2)).value();
  Tokens tokens(2);
  tokens.values[5] = kVocabulary;
  EXPECT_EQ(engine->Step(tasks::TokenBatch(2, tokens.values, 2), 1).status().message(),
            "inputs: 61 is not 0 to 60: the data is of another model");
  for (const auto& spoil : std::vector<std::function<void(Batch&)>>{
           [](Batch& batch) { batch.samples = 3; }, [](Batch& batch) { batch.global_samples = 1; },
           [](Batch& batch) { batch.tensors.Set(models::kTargets, batch.tensors[models::kTargets].to(at::kInt)); },
           [](Batch& batch) { batch.tensors.Set(models::kInputs, batch.tensors[models::kInputs].narrow(1, 0, 3)); },
           [](Batch& batch) { batch.tensors.Set(models::kInputs, at::Tensor()); }}) {
    Batch batch = tokens.batch;
    spoil(batch);
    EXPECT_EQ(engine->Step(batch, 1).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(tasks::NextToken(engine.get()).Logits({}).ok());
  const std::vector<uint32_t> long_text(kContext + 1);
  EXPECT_FALSE(tasks::NextToken(engine.get()).Logits(long_text).ok());
}

Config SmallResnet() {
  Config config;
  Resnet& m = *config.train.mutable_model()->mutable_resnet();
  m.set_depth(8), m.set_width(4), m.set_image(8);
  *config.train.mutable_model() = *models::Resolve(config.train.model());
  config.train.mutable_strategy()->mutable_single();
  config.train.mutable_batch()->set_sequences(6);
  config.train.mutable_batch()->set_microbatch(3);
  config.train.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  config.train.set_seed(3);
  config.inventory = *models::MakeInventory(config.train.model());
  Compile(config);
  return config;
}

Batch SomeImages() {
  const at::Tensor pixels = at::arange(6 * 3 * 64, at::kFloat).mul(0.37f).sin().view({6, 3, 8, 8});
  return {.samples = 6,
          .tensors = {{models::kInputs, pixels}, {models::kTargets, at::arange(6, at::kLong)}},
          .global_samples = 6};
}

// On a device with streams the state is a copy, the update is decided there, and kernels are tried: attention only
// where there is some.
TEST(Engine, BuffersAreStateOnEveryPath) {
  auto plain = Engine::Create(SmallResnet()).value();
  for (const char* path : {"streams", "recompute", "decide"}) {
    Config config = SmallResnet();
    config.train.set_activation_checkpointing(path[0] == 'r');
    Compile(config);
    config.streams = path[0] == 's';
    config.decide_on_device = path[0] == 'd';
    config.try_attention = [](const units::AttentionShape&) {
      ADD_FAILURE() << "nothing attends";
      return units::AttentionChoice{};
    };
    auto fresh = Engine::Create(SmallResnet()).value(), other = Engine::Create(config).value();
    for (auto* engine : {&fresh, &other}) {
      for (int i = 0; i < 3; ++i) ASSERT_TRUE((*engine)->Step(SomeImages(), 0.05).ok());
      ASSERT_TRUE((*engine)->Pull().ok());
    }
    std::vector<StateView> right = fresh->State(), ours = other->State();
    ASSERT_EQ(ours.size(), right.size()) << path;
    size_t buffers = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].tensor, right[i].tensor);
      buffers += ours[i].kind == "buffer" ? 1 : 0;
      EXPECT_TRUE(std::equal(ours[i].values.begin(), ours[i].values.end(), right[i].values.begin()))
          << path << ": " << ours[i].kind << " " << ours[i].tensor;
    }
    EXPECT_EQ(buffers, 14u) << "a mean and a variance of seven normalizations";
    // Into an engine that has seen nothing.
    auto loaded = Engine::Create(config).value();
    ASSERT_TRUE(loaded->Pull().ok());
    std::vector<StateView> into = loaded->State();
    for (size_t i = 0; i < into.size(); ++i)
      std::copy(right[i].values.begin(), right[i].values.end(), into[i].values.begin());
    ASSERT_TRUE(loaded->Push().ok());
    const Evaluation expected = fresh->Evaluate(SomeImages()).value(), found = loaded->Evaluate(SomeImages()).value();
    EXPECT_EQ(found.loss, expected.loss) << path;
    EXPECT_EQ(found.metrics, expected.metrics) << path;
    EXPECT_NE(plain->Evaluate(SomeImages()).value().loss, expected.loss);
    const at::Tensor logits = loaded->Predict(SomeImages().tensors[models::kInputs]).value();
    EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{6, 10})) << path;
  }
}

// The run equals one that never had the batch, whichever microbatch of it is NaN.
TEST(Engine, ASkippedStepLeavesRunningStatisticsAsTheyWere) {
  for (const char* path : {"host", "decide", "streams"}) {
    Config config = SmallResnet();
    config.train.mutable_on_nonfinite()->mutable_skip()->set_steps(3);
    Compile(config);
    config.decide_on_device = path[0] == 'd';
    config.streams = path[0] == 's';
    auto without = Engine::Create(config).value(), with = Engine::Create(config).value();
    ASSERT_TRUE(without->Step(SomeImages(), 0.05).ok() && with->Step(SomeImages(), 0.05).ok());
    for (const int64_t image : {0, 5}) {
      const Batch bad = SomeImages();
      bad.tensors[models::kInputs][image].fill_(std::nanf(""));
      EXPECT_TRUE(with->Step(bad, 0.05).value().skipped) << path;
    }
    for (auto* engine : {&without, &with}) {
      EXPECT_FALSE((*engine)->Step(SomeImages(), 0.05).value().skipped) << path;
      ASSERT_TRUE((*engine)->Pull().ok());
    }
    EXPECT_EQ(Weights(*with), Weights(*without)) << path;
    EXPECT_EQ(with->Evaluate(SomeImages()).value().loss, without->Evaluate(SomeImages()).value().loss) << path;
  }
}

// With and without a CPU's instructions for it, which the second way does not need.
TEST(Engine, AResnetLearnsInBf16) {
  auto wide = Engine::Create(SmallResnet()).value();
  double right = 0;
  for (int i = 0; i < 20; ++i) right = wide->Step(SomeImages(), 0.05).value().loss;
  for (const units::Bf16Gemms gemms : {units::Bf16Gemms::kNative, units::Bf16Gemms::kPanels}) {
    Config config = SmallResnet();
    config.train.mutable_precision()->set_compute(DTYPE_BF16);
    Compile(config);
    config.bf16_gemms = gemms;
    auto narrow = Engine::Create(config).value();
    double first = 0, last = 0;
    for (int i = 0; i < 20; ++i) {
      last = narrow->Step(SomeImages(), 0.05).value().loss;
      if (i == 0) first = last;
    }
    EXPECT_NEAR(first, std::log(10.0), 1.5);
    EXPECT_LT(last, 0.5 * first);
    EXPECT_NEAR(last, right, 0.3 * first) << "the same images, in eight bits of mantissa";
    EXPECT_TRUE(std::isfinite(narrow->Evaluate(SomeImages()).value().loss));
  }
}

TEST(Engine, ABatchOfOnePixelCannotBeNormalized) {
  Config config = SmallResnet();
  config.train.mutable_batch()->set_sequences(1);
  config.train.mutable_batch()->set_microbatch(1);
  config.train.mutable_model()->mutable_resnet()->set_image(1);
  config.inventory = *models::MakeInventory(config.train.model());
  Compile(config);
  auto engine = Engine::Create(config).value();
  const absl::Status status =
      engine
          ->Step({.samples = 1,
                  .tensors = {{models::kInputs, at::ones({1, 3, 1, 1})}, {models::kTargets, at::zeros({1}, at::kLong)}},
                  .global_samples = 1},
                 1)
          .status();
  EXPECT_TRUE(absl::StrContains(status.message(), "batch normalization needs more than one value")) << status;
}

TEST(Initialise, IsAFunctionOfSeedNameAndElement) {
  Tensor tensor;
  tensor.set_name("h.0.mlp.c_fc.weight");
  tensor.mutable_init()->set_kind(Initialisation::NORMAL);
  tensor.mutable_init()->set_standard_deviation(1.0);
  std::vector<float> whole(100'000), part(777), other(1000);
  Initialise(1, tensor, 0, absl::MakeSpan(whole));
  Initialise(1, tensor, 12'345, absl::MakeSpan(part));
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 12'345));
  Initialise(2, tensor, 0, absl::MakeSpan(other));
  EXPECT_NE(other[0], whole[0]);
  tensor.set_name("x");
  Initialise(1, tensor, 0, absl::MakeSpan(other));
  EXPECT_NE(other[0], whole[0]);

  double mean = 0, square = 0, fourth = 0;
  for (const float x : whole) mean += x, square += x * x, fourth += std::pow(x, 4);
  EXPECT_NEAR(mean / 1e5, 0, 0.02);
  EXPECT_NEAR(square / 1e5, 1, 0.02);
  EXPECT_NEAR(fourth / 1e5, 3, 0.15);
  // Pinned: checkpoints of step 0 must mean the same in every build.
  EXPECT_FLOAT_EQ(whole[0], -1.2173034f);
  EXPECT_FLOAT_EQ(whole[99'999], -0.89633572f);
}

}  // namespace
}  // namespace muster::engine
