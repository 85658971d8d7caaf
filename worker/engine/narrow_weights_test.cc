// Weights in bf16 are updated as fp32 weights that LibTorch rounds to bf16 after each step.
#include "worker/engine/narrow_weights.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "testing/optimizers.h"
#include "worker/engine/update_decision.h"

namespace muster::engine {
namespace {

const units::Gemms kWidePanels(units::Bf16Gemms::kPanels);

constexpr int64_t kNarrowMatrix = 300 * 400,
                  kNarrowElements = kNarrowMatrix + 90'000;  // both runs are longer than a block

at::Tensor Waves(double scale) { return at::arange(1, kNarrowElements + 1, at::kFloat).mul_(scale).sin_(); }
at::Tensor ToBf16AndBack(const at::Tensor& t) { return t.to(at::kBFloat16).to(at::kFloat); }

struct Trained {
  at::Tensor weights, gradients = at::zeros({kNarrowElements}, at::kFloat);
  std::unique_ptr<FlatOptimizer> optimizer;

  Trained(const std::string& kind, const at::Tensor& initial) : weights(initial) {
    Optimizer options = OptimizerOf(kind, 0.01);
    options.set_weight_decay(0.1);
    const auto run = [&](int64_t begin, int64_t length, bool decay, std::vector<int64_t> shape) {
      return Run{weights.narrow(0, begin, length), gradients.narrow(0, begin, length), begin, length, decay, shape};
    };
    const bool all_whole = kind == "adafactor", whole = all_whole || kind == "muon";
    const int64_t rest = kNarrowElements - kNarrowMatrix;
    const std::vector<Run> runs = {
        run(0, kNarrowMatrix, true, whole ? std::vector<int64_t>{300, 400} : std::vector<int64_t>{}),
        run(kNarrowMatrix, rest, false, all_whole ? std::vector<int64_t>{rest} : std::vector<int64_t>{})};
    const auto zeros = [](int64_t elements) { return at::zeros({elements}, at::kFloat); };
    optimizer = MakeOptimizer(options, runs, kNarrowElements, zeros, kWidePanels);
  }
};

// By kind of state: the values by element.
std::map<std::string, std::vector<at::Tensor>> StateByKind(FlatOptimizer& optimizer) {
  std::map<std::string, std::vector<at::Tensor>> by_kind;
  for (const StatePart& part : optimizer.State()) by_kind[part.kind].push_back(part.values.view({-1}));
  return by_kind;
}

class NarrowWeights : public testing::TestWithParam<std::string> {};

TEST_P(NarrowWeights, AreUpdatedInFp32AndRounded) {
  Trained narrow(GetParam(), Waves(0.7).to(at::kBFloat16)), wide(GetParam(), ToBf16AndBack(Waves(0.7)));
  const auto one = [](double value) { return at::full({1}, value, at::kFloat); };
  for (int step = 1; step <= 4; ++step) {
    for (Trained* trained : {&narrow, &wide}) {
      trained->gradients.copy_(Waves(0.3 * step));
      if (step == 2) {
        trained->optimizer->StepUnless({one(4), one(0), one(0)}, step, 0.02);
      } else if (step == 3) {
        trained->optimizer->StepUnless({one(1), one(1), one(0)}, step, 0.02);  // is skipped
      } else {
        trained->optimizer->Step(step, 0.02, step == 1 ? 1 : 0.5);
      }
    }
    const at::Tensor exact = wide.weights.clone();
    wide.weights.copy_(ToBf16AndBack(exact));
    EXPECT_EQ(step == 3, at::equal(exact, wide.weights)) << "nothing was rounded in step " << step;
    EXPECT_TRUE(at::equal(narrow.weights.to(at::kFloat), wide.weights)) << "step " << step;
  }
  const auto ours = StateByKind(*narrow.optimizer), right = StateByKind(*wide.optimizer);
  ASSERT_EQ(ours.size(), right.size());
  for (const auto& [kind, parts] : right) {
    EXPECT_TRUE(at::equal(at::cat(ours.at(kind)), at::cat(parts))) << kind;
    EXPECT_LE(ours.at(kind).size(), 2u) << kind << ": a part for each run";
  }
}
INSTANTIATE_TEST_SUITE_P(, NarrowWeights, testing::Values("adamw", "sgd", "lion", "muon", "adafactor"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace muster::engine
