// AdamW and SGD against the update rules of torch.optim's documentation, written out in double precision.
#include "worker/engine/optimizer.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace muster::engine {
namespace {

constexpr int64_t kElements = 48;  // 0..31 with weight decay, 32..47 without

at::Tensor Arena(double scale) {
  at::Tensor t = at::empty({kElements}, at::kFloat);
  for (int64_t i = 0; i < kElements; ++i) {
    t.mutable_data_ptr<float>()[i] = static_cast<float>(scale * std::sin(1.0 + static_cast<double>(i)));
  }
  return t;
}

std::vector<double> Values(const at::Tensor& t) {
  return std::vector<double>(t.const_data_ptr<float>(), t.const_data_ptr<float>() + t.numel());
}

const std::vector<Run> kRuns = {{0, 32, true}, {32, 16, false}};

TEST(AdamW, FollowsTheRule) {
  Optimizer options;
  options.mutable_adamw()->set_beta1(0.9);
  options.mutable_adamw()->set_beta2(0.95);
  options.mutable_adamw()->set_eps(1e-8);
  options.set_weight_decay(0.1);
  at::Tensor parameters = Arena(1), gradients = Arena(0);
  auto optimizer = MakeOptimizer(options, kRuns, parameters, gradients);
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
      auto optimizer = MakeOptimizer(options, kRuns, parameters, gradients);
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

}  // namespace
}  // namespace muster::engine
