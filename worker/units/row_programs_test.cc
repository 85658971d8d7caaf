// The programs of GPUs (cuda/row_programs.h), on a CPU: against the papers' formulas in float64 and against LibTorch's
// operators and autograd, through the same functions that the units call.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "worker/units/adamw.h"
#include "worker/units/autograd.h"
#include "worker/units/cuda/adamw_program.h"
#include "worker/units/llama_rows.h"
#include "worker/units/row_kernels.h"

namespace muster::units {
namespace {

constexpr RowCode kCode = RowCode::kDevice;

at::Tensor Normal(at::IntArrayRef shape, int seed, double scale = 1, double offset = 0) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(offset, scale);
  at::Tensor t = at::empty(shape, at::kDouble);
  std::generate_n(t.mutable_data_ptr<double>(), t.numel(), [&] { return normal(random); });
  return t;
}

at::Tensor Exact(const at::Tensor& t) { return t.to(at::kDouble); }

// `out` is `right` but for `relative` of each element, and of the largest one where summands cancel.
void ExpectNear(const at::Tensor& out, const at::Tensor& right, double relative, double of_largest) {
  if (right.numel() == 0) return;
  const at::Tensor bound = right.abs() * relative + right.abs().max() * of_largest;
  const at::Tensor difference = (Exact(out) - right).abs();
  EXPECT_TRUE(difference.le(bound).all().item<bool>()) << "off by up to " << difference.max().item<double>();
}

// A shape and a dtype of what is narrow. Roundings: of the wide dtype in sums, and of what is narrow once.
struct Case {
  int64_t rows, width;
  at::ScalarType narrow;

  at::ScalarType wide() const { return WideType(narrow); }
  double sum() const { return narrow == at::kDouble ? 1e-13 : 1e-5; }
  double once() const { return narrow == at::kBFloat16 ? 1.01 / 256 : narrow == at::kHalf ? 1.01 / 2048 : sum(); }
  std::string Name() const {
    return std::to_string(rows) + " x " + std::to_string(width) + " in " + c10::toString(narrow);
  }
};

class RowPrograms : public testing::TestWithParam<at::ScalarType> {
 protected:
  std::vector<Case> Cases() const {
    std::vector<Case> cases;
    for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 39}, {1, 1}, {3, 1}, {1, 31}, {5, 31}, {100, 39}, {33, 768}, {1, 768}, {31, 129}, {64, 260}}) {
      cases.push_back({rows, width, GetParam()});
    }
    return cases;
  }
};

// The formulas of layer norm (Ba et al. 2016).
struct ExactNorm {
  ExactNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias)
      : mean(x.mean({1}, true)),
        rstd(1 / ((x - mean).square().mean({1}, true) + 1e-5).sqrt()),
        hat((x - mean) * rstd),
        out(hat * weight + bias) {}
  const at::Tensor mean, rstd, hat, out;

  at::Tensor Backward(const at::Tensor& d, const at::Tensor& weight) const {
    const at::Tensor dw = d * weight;
    return rstd * (dw - dw.mean({1}, true) - hat * (dw * hat).mean({1}, true));
  }
};

TEST_P(RowPrograms, NormsAreTheFormulas) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.Name());
    const at::Tensor x = Normal({c.rows, c.width}, 1, 2, 3).to(c.wide()),
                     gemm = Normal({c.rows, c.width}, 2).to(c.narrow);
    const at::Tensor gemm_bias = Normal({c.width}, 3).to(c.narrow), weight = Normal({c.width}, 4).to(c.narrow);
    const at::Tensor bias = Normal({c.width}, 5).to(c.narrow), d = Normal({c.rows, c.width}, 6).to(c.narrow);
    const at::Tensor out = at::empty_like(gemm), statistics = at::empty({c.rows, 2}, x.options());
    Norm(x, weight, bias, out, statistics, kCode);
    const ExactNorm right(Exact(x), Exact(weight), Exact(bias));
    ExpectNear(out, right.out, c.once(), c.sum());
    ExpectNear(statistics.narrow(1, 0, 1), right.mean, c.sum(), c.sum());
    ExpectNear(statistics.narrow(1, 1, 1), right.rstd, 10 * c.sum(), 0);
    ExpectNear(out, at::layer_norm(Exact(x), {c.width}, Exact(weight), Exact(bias), 1e-5), c.once(), c.sum());

    const at::Tensor d_x = Normal({c.rows, c.width}, 7).to(c.wide()), before = Exact(d_x).clone();
    const at::Tensor d_weight = at::full({c.width}, 2.0, x.options()), d_bias = at::full({c.width}, -1.0, x.options());
    NormBackward(d, x, statistics, weight, d_x, d_weight, d_bias, kCode);
    ExpectNear(d_x, before + right.Backward(Exact(d), Exact(weight)), c.sum(), c.sum());
    ExpectNear(d_weight, 2 + (Exact(d) * right.hat).sum(0), c.sum(), c.sum());
    ExpectNear(d_bias, -1 + Exact(d).sum(0), c.sum(), c.sum());

    const at::Tensor again = at::empty_like(out);
    NormAgain(x, statistics, weight, bias, again, kCode);
    EXPECT_TRUE(again.equal(out)) << "recomputed from its statistics";

    // In place of the GEMM where the dtypes allow it, as the block calls it.
    const at::Tensor sum = c.narrow == c.wide() ? gemm.clone() : at::empty_like(x);
    AddAndNorm(x, c.narrow == c.wide() ? sum : gemm, gemm_bias, weight, bias, sum, out, statistics, kCode);
    const at::Tensor added = Exact(x) + Exact(gemm) + Exact(gemm_bias);
    ExpectNear(sum, added, c.sum(), c.sum());
    const at::Tensor normed = ExactNorm(Exact(sum), Exact(weight), Exact(bias)).out;
    ExpectNear(out, normed, c.once(), c.sum());
    const at::Tensor to = c.narrow == c.wide() ? gemm.clone() : at::empty_like(x);
    AddGemm(x, c.narrow == c.wide() ? to : gemm, gemm_bias, to, kCode);
    EXPECT_TRUE(to.equal(sum));
  }
}

// LibTorch differentiates its own operators.
TEST_P(RowPrograms, GradientsAreThoseOfAutograd) {
  for (const Case& c : Cases()) {
    if (c.rows == 0) continue;
    SCOPED_TRACE(c.Name());
    const at::Tensor x = Normal({c.rows, c.width}, 1, 2, 3).to(c.wide()), weight = Normal({c.width}, 4).to(c.narrow);
    const at::Tensor bias = Normal({c.width}, 5).to(c.narrow), d = Normal({c.rows, c.width}, 6).to(c.narrow);
    const at::Tensor hidden = Normal({c.rows, c.width}, 8, 3).to(c.narrow);
    const auto leaf = [](const at::Tensor& t) { return Exact(t).detach().requires_grad_(true); };
    std::vector<at::Tensor> norm, gelu;
    {
      const c10::AutoGradMode on(true);
      const at::Tensor lx = leaf(x), lw = leaf(weight), lb = leaf(bias), lh = leaf(hidden), lhb = leaf(bias);
      norm = Gradients(at::layer_norm(lx, {c.width}, lw, lb, 1e-5), Exact(d), {lx, lw, lb});
      gelu = Gradients(at::gelu(lh + lhb, "tanh"), Exact(d), {lh, lhb});
    }
    const at::Tensor out = at::empty_like(d), statistics = at::empty({c.rows, 2}, x.options());
    const at::Tensor d_x = at::zeros_like(x), d_weight = at::zeros({c.width}, x.options());
    const at::Tensor d_bias = at::zeros_like(d_weight), d_hidden = d.clone(), d_hidden_bias = at::zeros_like(d_weight);
    Norm(x, weight, bias, out, statistics, kCode);
    NormBackward(d, x, statistics, weight, d_x, d_weight, d_bias, kCode);
    if (c.width > 1) ExpectNear(d_x, norm[0], 2 * c.sum(), 2 * c.sum());  // of one element, it is zero
    ExpectNear(d_weight, norm[1], c.sum(), c.width > 1 ? c.sum() : 1e300);
    ExpectNear(d_bias, norm[2], c.sum(), c.sum());
    GeluBackward(hidden, bias, out, d_hidden, d_hidden_bias, kCode);
    ExpectNear(d_hidden, gelu[0], c.once(), c.sum());
    ExpectNear(d_hidden_bias, gelu[1], c.sum(), 2 * c.sum());
  }
}

// gelu(v) = v / 2 (1 + tanh(sqrt(2 / pi) (v + 0.044715 v^3))) (Hendrycks and Gimpel 2016).
TEST_P(RowPrograms, GeluIsTheFormula) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.Name());
    const at::Tensor x = Normal({c.rows, c.width}, 1, 3).to(c.narrow), bias = Normal({c.width}, 2).to(c.narrow);
    if (x.numel() > 8) x.view(-1)[0] = 1e4, x.view(-1)[1] = -1e4, x.view(-1)[2] = 0, x.view(-1)[3] = 300;
    const at::Tensor v = Exact(x) + Exact(bias);
    const at::Tensor t = (std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)).tanh(), right = 0.5 * v * (1 + t);
    const at::Tensor slope = 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * v * v);
    const at::Tensor out = at::empty_like(x), d = Normal({c.rows, c.width}, 3).to(c.narrow), given = Exact(d).clone();
    AddAndGelu(x, bias, out, kCode);
    // Absolute near zero, where 1 + tanh loses its digits in the formula itself.
    EXPECT_TRUE((Exact(out) - right).abs().le(right.abs() * c.once() + 1e-5).all().item<bool>());
    const at::Tensor again = at::empty_like(x), sums = at::ones({c.width}, x.options().dtype(c.wide()));
    GeluBackward(x, bias, again, d, sums, kCode);
    EXPECT_TRUE(again.equal(out));
    EXPECT_TRUE((Exact(d) - given * slope).abs().le((given * slope).abs() * c.once() + 1e-5).all().item<bool>());
    EXPECT_TRUE((Exact(sums) - 1 - (given * slope).sum(0)).abs().le(1e-4).all().item<bool>());
  }
}

TEST_P(RowPrograms, ColumnSumsAreOfWhatWasNotRounded) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.Name());
    const at::Tensor d = Normal({c.rows, c.width}, 1).to(c.wide()), narrow = at::empty({c.rows, c.width}, c.narrow);
    const at::Tensor sums = at::ones({c.width}, d.options()), more = at::ones({c.width}, d.options());
    NarrowAndSum(d, narrow, sums, kCode);
    EXPECT_TRUE(narrow.equal(d.to(c.narrow))) << "rounded as LibTorch does";
    ExpectNear(sums, 1 + Exact(d).sum(0), c.sum(), c.sum());
    AddColumnSums(narrow, more, kCode);
    ExpectNear(more, 1 + Exact(narrow).sum(0), c.sum(), c.sum());
  }
}

// -log softmax(x)[target], and its gradient softmax(x) - onehot(target).
TEST_P(RowPrograms, CrossEntropyIsTheFormula) {
  for (const auto& [rows, width, scale] : std::vector<std::tuple<int64_t, int64_t, double>>{
           {0, 39, 1}, {1, 1, 1}, {1, 31, 1}, {70, 39, 10}, {33, 768, 100}, {3, 50'257, 3}, {600, 61, 1}}) {
    const Case c{rows, width, GetParam()};
    SCOPED_TRACE(c.Name());
    const at::Tensor room = Normal({rows, width + 7}, 1, scale).to(c.narrow), logits = room.narrow(1, 0, width);
    const at::Tensor beside = room.narrow(1, width, 7).clone(), exact = Exact(logits).clone();
    const at::Tensor targets = at::empty({rows}, at::kLong), sum = at::full({}, 7.0, at::kDouble);
    for (int64_t r = 0; r < rows; ++r) targets.mutable_data_ptr<int64_t>()[r] = r * 7919 % width;
    const at::Tensor top = exact.amax({1}, true), all = (exact - top).exp().sum({1}, true);
    const at::Tensor picked = targets.unsqueeze(1);
    const double right = (all.log() + top - exact.gather(1, picked)).sum().item<double>();
    CrossEntropy(logits, targets, 0, sum, kCode);
    EXPECT_NEAR(sum.item<double>() - 7, right, 1e-6 * right + 1e-12);
    EXPECT_TRUE(Exact(logits).equal(exact)) << "without a scale the logits stay";
    CrossEntropy(logits, targets, 0.25, sum.zero_(), kCode);
    EXPECT_NEAR(sum.item<double>(), right, 1e-6 * right + 1e-12);
    const at::Tensor softmax = (exact - top).exp() / all;
    const at::Tensor gradient = 0.25 * softmax.scatter_add(1, picked, at::full({rows, 1}, -1.0, at::kDouble));
    EXPECT_TRUE((Exact(logits) - gradient).abs().le(gradient.abs() * c.once() + 1e-6).all().item<bool>());
    EXPECT_TRUE(room.narrow(1, width, 7).equal(beside)) << "what lies between the rows";
    if (rows == 0) continue;
    const c10::AutoGradMode on(true);
    const at::Tensor leaf = exact.detach().requires_grad_(true);
    const at::Tensor loss = at::cross_entropy_loss(leaf, targets, {}, /*sum*/ 2);
    EXPECT_NEAR(sum.item<double>(), loss.item<double>(), 1e-6 * right + 1e-12);
    const at::Tensor theirs = Gradients(loss, at::full({}, 0.25, at::kDouble), {leaf})[0];
    EXPECT_TRUE((Exact(logits) - theirs).abs().le(theirs.abs() * c.once() + 1e-6).all().item<bool>());
  }
}

TEST_P(RowPrograms, EqualRunsAreBitEqual) {
  const Case c{1'000, 77, GetParam()};
  const auto run = [&] {
    const at::Tensor x = Normal({c.rows, c.width}, 1).to(c.wide()), d = Normal({c.rows, c.width}, 2).to(c.narrow);
    const at::Tensor v = Normal({c.width}, 3).to(c.narrow), out = at::empty_like(d), loss = at::zeros({}, at::kDouble);
    const at::Tensor statistics = at::empty({c.rows, 2}, x.options()), d_x = at::zeros_like(x);
    std::vector<at::Tensor> sums;
    for (int i = 0; i < 5; ++i) sums.push_back(at::zeros({c.width}, x.options()));
    Norm(x, v, v, out, statistics, kCode);
    NormBackward(d, x, statistics, v, d_x, sums[0], sums[1], kCode);
    NarrowAndSum(d_x, out, sums[2], kCode);
    AddColumnSums(d, sums[3], kCode);
    GeluBackward(out, v, out.clone(), d, sums[4], kCode);
    CrossEntropy(out, at::zeros({c.rows}, at::kLong), 0.5, loss, kCode);
    sums.insert(sums.end(), {out, d, d_x, loss});
    return sums;
  };
  const std::vector<at::Tensor> one = run(), two = run();
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(two[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Dtypes, RowPrograms, testing::Values(at::kFloat, at::kBFloat16, at::kHalf, at::kDouble),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(RowProgramsInfinity, IsNotHiddenAndHidesNothing) {
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor targets = at::zeros({1}, at::kLong);
  const auto loss = [&](int64_t at, float value) {
    const at::Tensor logits = at::zeros({1, 600}), sum = at::zeros({}, at::kDouble);
    logits[0][at] = value;
    CrossEntropy(logits, targets, 0.5, sum, kCode);
    return sum.item<double>();
  };
  EXPECT_TRUE(std::isnan(loss(7, std::nanf(""))));
  EXPECT_TRUE(std::isnan(loss(0, std::nanf("")))) << "a thread's first number";
  EXPECT_FALSE(std::isfinite(loss(7, infinity)));
  for (const int64_t at : {1, 513, 599}) EXPECT_NEAR(loss(at, -infinity), std::log(599), 1e-5) << at;
  const at::Tensor narrow = at::empty({1, 3}, at::kBFloat16), wide = at::empty({1, 3});
  wide[0][0] = std::nanf(""), wide[0][1] = -infinity, wide[0][2] = std::numeric_limits<float>::max();
  NarrowAndSum(wide, narrow, at::zeros({3}), kCode);
  EXPECT_TRUE(std::isnan(narrow[0][0].item<float>()));
  EXPECT_EQ(narrow[0][1].item<float>(), -infinity);
  EXPECT_EQ(narrow[0][2].item<float>(), infinity);
}

TEST(RowProgramsErrors, RefuseWhatTheyWouldMisread) {
  const at::Tensor x = at::ones({4, 6}), out = at::empty_like(x), v = at::zeros({6}), s = at::empty({4, 2});
  EXPECT_THROW(Norm(x.t().contiguous().t(), v, v, out, s, kCode), c10::Error);
  EXPECT_THROW(Norm(x, v, v, out.to(at::kLong), s, kCode), c10::Error);
  EXPECT_THROW(Norm(x, v, v, out.to(at::kBFloat16), s, kCode), c10::Error) << "vectors in fp32 beside GEMMs in bf16";
  EXPECT_THROW(Norm(x, at::zeros({5}), v, out, s, kCode), c10::Error) << "a vector of another width";
  EXPECT_THROW(Norm(x, v, v, at::empty({3, 6}), s, kCode), c10::Error) << "fewer rows";
  EXPECT_THROW(CrossEntropy(x.t().contiguous().t(), at::zeros({4}, at::kLong), 1, at::zeros({}, at::kDouble), kCode),
               c10::Error);
}

// Rows go by several numbers at once where tensors and rows begin at multiples of them.
TEST_P(RowPrograms, WhereTensorsBeginChangesNoBit) {
  const at::ScalarType narrow = GetParam(), wide = WideType(narrow);
  for (const int64_t width : {24, 25}) {
    const int64_t rows = 5, n = rows * width;
    const auto run = [&](int64_t offset) {
      const auto part = [&](int64_t elements, at::ScalarType type, int seed) {
        const at::Tensor room = at::zeros({elements + offset}, type), t = room.narrow(0, offset, elements);
        t.copy_(Normal({elements}, seed));
        return t;
      };
      const auto matrix = [&](at::ScalarType type, int seed) { return part(n, type, seed).view({rows, width}); };
      const at::Tensor x = matrix(wide, 1), gemm = matrix(narrow, 2), w = part(width, narrow, 3);
      const at::Tensor statistics = part(2 * rows, wide, 4).view({rows, 2}), rstd = part(rows, wide, 5);
      const at::Tensor gate_up = part(2 * n, narrow, 6).view({rows, 2 * width});
      std::vector<at::Tensor> out;
      for (int i = 0; i < 7; ++i) out.push_back(matrix(i < 2 ? wide : narrow, 7 + i));
      AddGemm(x, gemm, w, out[0], kCode);
      Add(x, gemm, out[1], kCode);
      AddAndGelu(gemm, w, out[2], kCode);
      NormAgain(x, statistics, w, w, out[3], kCode);
      RmsNormAgain(x, rstd, w, out[4], kCode);
      SwiGlu(gate_up, out[5], kCode);
      SwiGluBackward(gate_up, out[6], gemm, gate_up, kCode);
      out.push_back(gate_up);
      return out;
    };
    const std::vector<at::Tensor> right = run(0);
    for (const int64_t offset : {1, 2, 4}) {
      const std::vector<at::Tensor> seen = run(offset);
      for (size_t i = 0; i < right.size(); ++i) EXPECT_TRUE(seen[i].equal(right[i])) << width << ", " << offset << i;
    }
  }
}

// More runs than one launch takes, each of several blocks or of none; where a run begins changes no bit.
TEST(AdamW, UpdatesEachElementOfEachRunOnce) {
  const int64_t n = programs::kAdamWElements + 5;
  const auto updated = [&](int64_t first_run, int64_t runs, at::ScalarType narrow = at::kFloat) {
    const at::Tensor p = Normal({n}, 1).to(at::kFloat), g = Normal({n}, 2).to(at::kFloat);
    const at::Tensor m = Normal({n}, 3).to(at::kFloat), v = Normal({n}, 4).square().to(at::kFloat);
    const at::Tensor computed = at::zeros({n}, narrow);
    std::vector<AdamWRun> all;
    int64_t begin = 0;
    for (int64_t r = 0; r < runs; ++r) {
      const int64_t length = r == 0 ? first_run : r + 1 == runs ? n - begin : (n - first_run) / runs * (r % 2);
      const auto part = [&](const at::Tensor& t) { return t.narrow(0, begin, length); };
      const at::Tensor copy = narrow == at::kFloat ? at::Tensor() : part(computed);
      all.push_back({part(p), part(g), part(m), part(v), copy, 0.1});
      begin += length;
    }
    UpdateByAdamW(all, {.learning_rate = 0.1, .step = 3});
    if (narrow != at::kFloat) {
      EXPECT_TRUE(computed.equal(p.to(narrow))) << narrow;  // LibTorch's rounding
    }
    return std::vector<at::Tensor>{p, m, v};
  };
  const std::vector<at::Tensor> whole = updated(n, 1);
  for (const int64_t first : {1, 2, 3, 4, 100}) {
    const std::vector<at::Tensor> parts = updated(first, 3 * programs::kAdamWRuns / 2);
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(parts[i].equal(whole[i])) << first << ", tensor " << i;
    for (const at::ScalarType narrow : {at::kBFloat16, at::kHalf}) {
      const std::vector<at::Tensor> copied = updated(first, 3 * programs::kAdamWRuns / 2, narrow);
      for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(copied[i].equal(whole[i])) << narrow << ", tensor " << i;
    }
  }
  EXPECT_THROW(UpdateByAdamW({{whole[0], whole[1], whole[2].narrow(0, 1, n - 1), whole[2]}}, {}), c10::Error);
  EXPECT_THROW(UpdateByAdamW({{whole[0], whole[1], whole[2].to(at::kHalf), whole[2]}}, {}), c10::Error);
  EXPECT_THROW(UpdateByAdamW({{whole[0], whole[1], whole[2], whole[2], whole[0]}}, {}), c10::Error) << "an fp32 copy";
}

// Halfway between two neighbors, next to it, past the largest half, too small for one, and what is no number, as
// LibTorch rounds them. A learning rate of 0 leaves the parameters as they are.
TEST(AdamW, CopiesAreRoundedAsLibTorchRounds) {
  std::vector<float> values = {0.0f, 65519.0f, 65520.0f, 1e30f, 3.4e38f, 1e-8f, 2.98e-8f, 6e-8f, 1e-40f};
  for (int i = 0; i < 4; ++i) {
    const float up = static_cast<float>(i);
    values.insert(values.end(), {1 + (up + 0.5f) / 128, std::nextafter(1 + (up + 0.5f) / 128, 2.0f)});
    values.insert(values.end(), {1 + (up + 0.5f) / 1024, std::nextafter(1 + (up + 0.5f) / 1024, 0.0f)});
  }
  const auto numbers = static_cast<int64_t>(values.size());
  values.push_back(std::nanf(""));
  const at::Tensor p = at::tensor(values), zeros = at::zeros_like(p);
  for (const at::ScalarType narrow : {at::kBFloat16, at::kHalf}) {
    const at::Tensor computed = at::ones_like(p, narrow);
    UpdateByAdamW({{p, zeros, zeros.clone(), zeros.clone(), computed}}, {.learning_rate = 0, .step = 1});
    const auto bits = [&](const at::Tensor& t) { return t.narrow(0, 0, numbers).view(at::kShort); };
    EXPECT_TRUE(bits(computed).equal(bits(at::tensor(values).to(narrow)))) << computed;
    EXPECT_TRUE(std::isnan(computed[numbers].item<float>()));
  }
}

TEST(AdamW, ASkippedUpdateWritesNoCopy) {
  const at::Tensor p = at::ones({5}), g = at::ones({5}), state = at::zeros({5}), computed = at::zeros({5}, at::kHalf);
  const at::Tensor one = at::ones({1});
  UpdateByAdamW({{p, g, state, state, computed}}, {}, {.divisor = one, .skip = one, .skipped = one});
  EXPECT_TRUE(computed.equal(at::zeros({5}, at::kHalf)));
}

}  // namespace
}  // namespace muster::units
