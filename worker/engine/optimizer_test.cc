// AdamW and SGD against the update rules of torch.optim's documentation, written out in double precision.
#include "worker/engine/optimizer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "testing/optimizers.h"
#include "worker/engine/update_decision.h"

namespace muster::engine {
namespace {

const units::Gemms kGemms(units::Bf16Gemms::kNative);

constexpr int64_t kElements = 48;  // 0..31 with weight decay, 32..47 without

at::Tensor Arena(double scale) {
  at::Tensor t = at::empty({kElements}, at::kFloat);
  for (int64_t i = 0; i < kElements; ++i) {
    t.mutable_data_ptr<float>()[i] = static_cast<float>(scale * std::sin(1.0 + static_cast<double>(i)));
  }
  return t;
}

at::Tensor OnTheHost(int64_t elements) { return at::zeros({elements}, at::kFloat); }

std::vector<double> Values(const at::Tensor& t) {
  return std::vector<double>(t.const_data_ptr<float>(), t.const_data_ptr<float>() + t.numel());
}

std::unique_ptr<FlatOptimizer> Make(const Optimizer& options, const at::Tensor& parameters, const at::Tensor& gradients,
                                    bool by_programs = false) {
  const auto run = [&](int64_t begin, int64_t length, bool decay) {
    return Run{parameters.narrow(0, begin, length), gradients.narrow(0, begin, length), begin, length, decay};
  };
  return MakeOptimizer(options, {run(0, 32, true), run(32, 16, false)}, kElements, OnTheHost, kGemms, by_programs);
}

// By LibTorch's operator, and by the program of GPUs.
class AdamW : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(ByPrograms, AdamW, testing::Bool());

TEST_P(AdamW, FollowsTheRule) {
  Optimizer options;
  options.mutable_adamw()->set_beta1(0.9);
  options.mutable_adamw()->set_beta2(0.95);
  options.mutable_adamw()->set_eps(1e-8);
  options.set_weight_decay(0.1);
  at::Tensor parameters = Arena(1), gradients = Arena(0);
  auto optimizer = Make(options, parameters, gradients, GetParam());
  std::vector<double> p = Values(parameters), m(kElements), v(kElements);
  for (int step = 1; step <= 5; ++step) {
    gradients.copy_(Arena(0.5 * step));
    const std::vector<double> g = Values(gradients);
    const double lr = 0.01 * step, factor = step == 3 ? 0.25 : 1.0;
    optimizer->Step(step, lr, factor);
    for (int64_t i = 0; i < kElements; ++i) {
      const double gi = g[i] * factor;
      p[i] *= 1 - lr * (i < 32 ? 0.1 : 0.0);
      m[i] = 0.9 * m[i] + 0.1 * gi;
      v[i] = 0.95 * v[i] + 0.05 * gi * gi;
      const double mh = m[i] / (1 - std::pow(0.9, step)), vh = v[i] / (1 - std::pow(0.95, step));
      p[i] -= lr * mh / (std::sqrt(vh) + 1e-8);
    }
    const std::vector<double> ours = Values(parameters);
    for (int64_t i = 0; i < kElements; ++i) ASSERT_NEAR(ours[i], p[i], 2e-6) << "step " << step << " element " << i;
  }
  EXPECT_EQ(optimizer->State().size(), 2u);
}

TEST(Sgd, FollowsTheRule) {
  for (const double momentum : {0.0, 0.9}) {
    for (const bool nesterov : {false, true}) {
      if (momentum == 0 && nesterov) continue;
      Optimizer options;
      options.mutable_sgd()->set_momentum(momentum);
      options.mutable_sgd()->set_nesterov(nesterov);
      options.set_weight_decay(0.05);
      at::Tensor parameters = Arena(1), gradients = Arena(0);
      auto optimizer = Make(options, parameters, gradients);
      std::vector<double> p = Values(parameters), b(kElements);
      for (int step = 1; step <= 4; ++step) {
        gradients.copy_(Arena(0.5 * step));
        const std::vector<double> g = Values(gradients);
        const double factor = step == 2 ? 0.5 : 1.0;
        optimizer->Step(step, 0.1, factor);
        for (int64_t i = 0; i < kElements; ++i) {
          double gi = g[i] * factor + (i < 32 ? 0.05 * p[i] : 0.0);
          b[i] = step == 1 ? gi : momentum * b[i] + gi;
          if (momentum > 0) gi = nesterov ? gi + momentum * b[i] : b[i];
          p[i] -= 0.1 * gi;
        }
        const std::vector<double> ours = Values(parameters);
        for (int64_t i = 0; i < kElements; ++i) ASSERT_NEAR(ours[i], p[i], 1e-6) << step << " " << i;
      }
      EXPECT_EQ(optimizer->State().size(), momentum > 0 ? 1u : 0u);
    }
  }
}

// One element, by hand from Algorithm 2: beta1 0.9, beta2 0.99, lr 0.1, weight decay 0.5. The second gradient is
// against the momentum and outweighs it, the third is too small to, and in a step without a gradient the momentum alone
// decides.
TEST(Lion, FollowsAlgorithm2ByHand) {
  Optimizer options;
  options.mutable_lion()->set_beta1(0.9);
  options.mutable_lion()->set_beta2(0.99);
  options.set_weight_decay(0.5);
  at::Tensor parameter = at::full({1}, 1.0, at::kFloat), gradient = at::zeros({1}, at::kFloat);
  auto optimizer = MakeOptimizer(options, {{parameter, gradient, 0, 1, true}}, 1, OnTheHost, kGemms);
  const struct {
    double gradient, parameter, momentum;
  } steps[] = {
      {1, 0.95 * 1 - 0.1, 0.01},                     // 0.9 * 0 + 0.1 * 1 > 0
      {-2, 0.95 * 0.85 + 0.1, -0.0101},              // 0.9 * 0.01 - 0.1 * 2 < 0; 0.99 * 0.01 - 0.01 * 2
      {0.01, 0.95 * 0.9075 + 0.1, -0.009899},        // 0.9 * -0.0101 + 0.1 * 0.01 < 0
      {0, 0.95 * 0.962125 + 0.1, -0.00980001},       // the momentum alone
      {0.5, 0.95 * 1.01401875 - 0.1, -0.0047020099}  // 0.9 * -0.0098 + 0.1 * 0.5 > 0
  };
  uint64_t number = 0;
  for (const auto& step : steps) {
    gradient.fill_(step.gradient);
    optimizer->Step(++number, 0.1, 1);
    EXPECT_NEAR(parameter.item<float>(), step.parameter, 1e-6) << number;
    EXPECT_NEAR(optimizer->State()[0].values.item<float>(), step.momentum, 1e-8) << number;
  }
}

// Longer than a block, with clipping, with and without decay.
TEST(Lion, FollowsTheRuleInEveryBlock) {
  constexpr int64_t kLong = 40'000, kDecayed = 35'000;
  Optimizer options;
  options.mutable_lion()->set_beta1(0.95);
  options.mutable_lion()->set_beta2(0.98);
  options.set_weight_decay(0.5);
  at::Tensor parameters = at::full({kLong}, 0.5, at::kFloat), gradients = at::zeros({kLong}, at::kFloat);
  const auto run = [&](int64_t begin, int64_t length, bool decay) {
    return engine::Run{parameters.narrow(0, begin, length), gradients.narrow(0, begin, length), begin, length, decay};
  };
  auto optimizer = MakeOptimizer(options, {run(0, kDecayed, true), run(kDecayed, kLong - kDecayed, false)}, kLong,
                                 OnTheHost, kGemms);
  std::vector<double> p = Values(parameters), m(kLong);
  for (int step = 1; step <= 3; ++step) {
    for (int64_t i = 0; i < kLong; ++i) {
      gradients.mutable_data_ptr<float>()[i] = static_cast<float>(std::sin(1.0 + static_cast<double>(i * step)));
    }
    const std::vector<double> g = Values(gradients);
    const double factor = step == 2 ? 0.25 : 1.0;
    optimizer->Step(step, 0.01, factor);
    for (int64_t i = 0; i < kLong; ++i) {
      const double c = 0.95 * m[i] + 0.05 * factor * g[i];
      p[i] = p[i] * (1 - 0.01 * (i < kDecayed ? 0.5 : 0.0)) - 0.01 * (c > 0 ? 1 : -1);
      m[i] = 0.98 * m[i] + 0.02 * factor * g[i];
    }
    const std::vector<double> ours = Values(parameters);
    for (int64_t i = 0; i < kLong; ++i) ASSERT_NEAR(ours[i], p[i], 1e-6) << "step " << step << " element " << i;
  }
}

at::Tensor One(double value) { return at::full({1}, value, at::kFloat); }

UpdateDecision Decision(double divisor, double skip, double skipped) { return {One(divisor), One(skip), One(skipped)}; }

// A decision on the device equals the host's decision.
TEST(StepUnless, DividesAndSkips) {
  Optimizer adamw, sgd, momentum, nesterov, lion;
  lion.mutable_lion()->set_beta1(0.9);
  lion.mutable_lion()->set_beta2(0.99);
  adamw.mutable_adamw()->set_beta1(0.9);
  adamw.mutable_adamw()->set_beta2(0.95);
  adamw.mutable_adamw()->set_eps(1e-8);
  sgd.mutable_sgd();
  momentum.mutable_sgd()->set_momentum(0.9);
  nesterov.mutable_sgd()->set_momentum(0.9);
  nesterov.mutable_sgd()->set_nesterov(true);
  for (const auto& [kind, by_programs] : std::vector<std::pair<Optimizer, bool>>{
           {adamw, false}, {adamw, true}, {sgd, false}, {momentum, false}, {nesterov, false}, {lion, false}}) {
    Optimizer options = kind;
    options.set_weight_decay(0.1);
    at::Tensor by_host = Arena(1), by_device = Arena(1), host_gradients = Arena(0), device_gradients = Arena(0);
    auto host = Make(options, by_host, host_gradients);
    auto device = Make(options, by_device, device_gradients, by_programs);
    for (int step = 1; step <= 4; ++step) {
      host_gradients.copy_(Arena(0.5 * step));
      device_gradients.copy_(host_gradients);
      host->Step(step, 0.05, 0.25);
      device->StepUnless(Decision(4, 0, 0), step, 0.05);
      const std::vector<double> right = Values(by_host), ours = Values(by_device);
      for (int64_t i = 0; i < kElements; ++i) ASSERT_NEAR(ours[i], right[i], 1e-6) << options.DebugString() << step;
    }
    const at::Tensor before = by_device.clone();
    std::vector<at::Tensor> state;
    for (const StatePart& part : device->State()) state.push_back(part.values.clone());
    device_gradients.fill_(std::nan(""));
    device->StepUnless(Decision(4, 1, 0), 5, 0.05);
    EXPECT_TRUE(at::equal(before, by_device)) << options.DebugString();
    for (size_t i = 0; i < state.size(); ++i) EXPECT_TRUE(at::equal(state[i], device->State()[i].values));
  }
}

// Copies that are computed with, by every optimizer: as LibTorch rounds the parameters, also after a skipped step.
TEST(Copies, AreOfTheUpdatedParameters) {
  for (const std::string kind : {"adamw", "sgd", "lion", "muon", "adafactor"}) {
    for (const bool by_programs : {false, true}) {
      for (const at::ScalarType narrow : {at::kBFloat16, at::kHalf}) {
        const at::Tensor parameters = Arena(1), gradients = Arena(0), computed = Arena(1).to(narrow);
        const auto run = [&](int64_t begin, int64_t length) {
          return engine::Run{.parameter = parameters.narrow(0, begin, length),
                             .gradient = gradients.narrow(0, begin, length),
                             .begin = begin,
                             .length = length,
                             .decay = begin == 0,
                             .shape = begin == 0 ? std::vector<int64_t>{8, 4} : std::vector<int64_t>{length},
                             .computed = computed.narrow(0, begin, length)};
        };
        std::vector<engine::Run> runs = {run(0, 32), run(32, 16)};
        if (kind != "adafactor") runs[1].shape = {};
        if (kind != "adafactor" && kind != "muon") runs[0].shape = {};
        const auto optimizer = MakeOptimizer(OptimizerOf(kind, 1e-2), runs, kElements, OnTheHost, kGemms, by_programs);
        gradients.copy_(Arena(0.5));
        optimizer->Step(1, 1e-2, 0.5);
        const at::Tensor first = computed.clone();
        EXPECT_TRUE(first.equal(parameters.to(narrow))) << kind << narrow;
        EXPECT_FALSE(first.equal(Arena(1).to(narrow))) << kind << narrow << ": nothing was updated";
        gradients.copy_(Arena(0.5));
        optimizer->StepUnless(Decision(4, 0, 0), 2, 1e-2);
        EXPECT_TRUE(computed.equal(parameters.to(narrow))) << kind << narrow;
        EXPECT_FALSE(computed.equal(first)) << kind << narrow;
        const at::Tensor second = computed.clone();
        gradients.fill_(std::nan(""));
        optimizer->StepUnless(Decision(4, 1, 0), 3, 1e-2);
        EXPECT_TRUE(computed.equal(second)) << kind << narrow << ": of a skipped step";
      }
    }
  }
}

// torch.optim.AdamW's step counts the updates only: 1 / (1 - 0.9^t).
TEST_P(AdamW, CorrectsTheBiasByTheUpdatesThatWereMade) {
  Optimizer options;
  options.mutable_adamw()->set_beta1(0.9);
  options.mutable_adamw()->set_beta2(0.95);
  options.mutable_adamw()->set_eps(1e-8);
  at::Tensor third = Arena(1), tenth = Arena(1), gradients = Arena(0);
  gradients.copy_(Arena(0.5));
  Make(options, third, gradients, GetParam())->StepUnless(Decision(1, 0, 0), 3, 0.05);
  Make(options, tenth, gradients, GetParam())->StepUnless(Decision(1, 0, 7), 10, 0.05);
  EXPECT_TRUE(at::equal(third, tenth));
  at::Tensor wrong = Arena(1);
  Make(options, wrong, gradients, GetParam())->StepUnless(Decision(1, 0, 0), 10, 0.05);
  EXPECT_FALSE(at::equal(wrong, tenth));
}

const double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor FreshState(double scale = 1) {
  UpdateState state;
  state.set_loss_scale(scale);
  return ToTensor(state, at::kCPU);
}
UpdateState StateIn(const at::Tensor& state) { return ToUpdateState(state.const_data_ptr<double>()); }

TEST(UpdateDecision, ClipsAsTorchAndSkipsWhatIsNotFinite) {
  const auto judge = [](double loss, double norm, double clip) {
    const at::Tensor numbers = at::full({3}, loss, at::kDouble);
    numbers.mutable_data_ptr<double>()[2] = norm;
    const UpdateDecision v = DecideUpdate({.clip_norm = clip}, numbers, FreshState());
    return std::pair(v.divisor.item<float>(), v.skip.item<float>());
  };
  EXPECT_EQ(judge(1, 0.5, 1), std::pair(1.0f, 0.0f));
  EXPECT_EQ(judge(1, 4, 2), std::pair(static_cast<float>((4 + 1e-6) / 2), 0.0f));
  EXPECT_EQ(judge(1, 4, kInfinity), std::pair(1.0f, 0.0f));
  for (const double bad : {std::nan(""), kInfinity, -kInfinity}) {
    EXPECT_EQ(judge(bad, 1, 1).second, 1.0f);
    EXPECT_EQ(judge(1, bad, 1).second, 1.0f);
  }
}

at::Tensor Good() { return at::full({2}, 1, at::kDouble); }
at::Tensor Bad() { return at::full({2}, std::nan(""), at::kDouble); }

TEST(UpdateDecision, SkipsEveryStepAfterOneThatMayNotBeSkipped) {
  const at::Tensor state = FreshState();
  const UpdateRules rules{.clip_norm = 1};
  const auto halts = [&](const at::Tensor& numbers) {
    const float skip = DecideUpdate(rules, numbers, state).skip.item<float>();
    return std::pair(skip, state[kHalted].item<double>());
  };
  EXPECT_EQ(halts(Good()), std::pair(0.0f, 0.0));
  EXPECT_EQ(halts(Bad()), std::pair(1.0f, 1.0));
  EXPECT_EQ(halts(Good()), std::pair(1.0f, 1.0));
  EXPECT_EQ(StateIn(state).skipped_steps(), 0u) << "a step that fails is not one that was skipped";
}

TEST(UpdateDecision, SkipsAsManyInARowAsItMay) {
  const UpdateRules rules{.clip_norm = 1, .most_skipped = 2};
  const at::Tensor state = FreshState();
  const auto skipped = [&](const at::Tensor& numbers) {
    DecideUpdate(rules, numbers, state);
    return state[kHalted].item<double>() != 0 ? -1 : static_cast<int>(StateIn(state).skipped_steps());
  };
  EXPECT_EQ(skipped(Bad()), 1);
  EXPECT_EQ(skipped(Bad()), 2);
  EXPECT_EQ(skipped(Good()), 2) << "begins the count again";
  EXPECT_EQ(skipped(Bad()), 3);
  EXPECT_EQ(skipped(Bad()), 4);
  EXPECT_EQ(skipped(Bad()), -1);
}

// The scales are those of torch.amp.GradScaler("cpu", init_scale=8, growth_factor=2, backoff_factor=0.5,
// growth_interval=3) after each update() with and without an infinity among the gradients (PyTorch 2.13).
TEST(UpdateDecision, MovesTheLossScaleAsGradScalerDoes) {
  const UpdateRules rules{.clip_norm = kInfinity, .growth = 2, .backoff = 0.5, .minimum = 1, .growth_interval = 3};
  const at::Tensor state = FreshState(8);
  const std::string steps = "ggbgggggggbbg";
  const std::vector<double> scales = {8, 8, 4, 4, 4, 8, 8, 8, 16, 16, 8, 4, 4};
  for (size_t i = 0; i < steps.size(); ++i) {
    const double before = StateIn(state).loss_scale();
    const UpdateDecision v = DecideUpdate(rules, steps[i] == 'g' ? Good() : Bad(), state);
    EXPECT_EQ(v.skip.item<float>(), steps[i] == 'g' ? 0 : 1) << i;
    if (steps[i] == 'g') {
      EXPECT_EQ(v.divisor.item<float>(), before) << "gradients are divided by the scale that they were computed with";
    }
    EXPECT_EQ(StateIn(state).loss_scale(), scales[i]) << i;
  }
  EXPECT_EQ(StateIn(state).skipped_steps(), 3u);
  // Down to the minimum, at which a step that overflows is one that is not finite.
  for (const double scale : {2.0, 1.0}) {
    DecideUpdate(rules, Bad(), state);
    EXPECT_EQ(StateIn(state).loss_scale(), scale);
    EXPECT_EQ(state[kHalted].item<double>(), 0);
  }
  DecideUpdate(rules, Bad(), state);
  EXPECT_EQ(StateIn(state).loss_scale(), 1);
  EXPECT_EQ(state[kHalted].item<double>(), 1);
}

TEST(UpdateDecision, NeverScalesToInfinity) {
  const UpdateRules rules{.clip_norm = kInfinity, .growth = 1e9, .backoff = 0.5};
  const at::Tensor state = FreshState();
  for (int i = 0; i < 8; ++i) DecideUpdate(rules, Good(), state);
  EXPECT_LE(StateIn(state).loss_scale(), std::numeric_limits<float>::max());
  EXPECT_GT(StateIn(state).loss_scale(), 1e38);
}

}  // namespace
}  // namespace muster::engine
