// The kernels against their definitions in float64. units_test proves the formulas by autograd; here are the numbers
// that a model's first steps never reach, and the split over threads.
#include "worker/units/row_kernels.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace muster::units {
namespace {

at::Tensor Random(int64_t rows, int64_t width, float scale, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  at::Tensor t = at::empty({rows, width}, at::kFloat);
  std::generate_n(t.mutable_data_ptr<float>(), t.numel(), [&] { return normal(random); });
  return t;
}

double Largest(const at::Tensor& t) { return t.abs().max().item<double>(); }

double Loss(const at::Tensor& logits, const at::Tensor& targets, double scale) {
  const at::Tensor sum = at::zeros({}, at::kDouble);
  CrossEntropy(logits, targets, scale, sum);
  return sum.item<double>();
}

TEST(RowKernels, GeluIsRightFarFromZero) {
  const at::Tensor x = Random(40, 100, 20, 1), bias = at::zeros({100}), out = at::empty_like(x);
  x.view(-1)[0] = 1e4f, x.view(-1)[1] = -1e4f, x.view(-1)[2] = 0.0f, x.view(-1)[3] = 300.0f;
  AddAndGelu(x, bias, out);
  const at::Tensor right = at::gelu(x.to(at::kDouble), "tanh");
  EXPECT_LT(Largest(out.to(at::kDouble) - right), 1e-6 * Largest(right));
  EXPECT_EQ(out.view(-1)[0].item<float>(), 1e4f);
  EXPECT_NEAR(out.view(-1)[1].item<float>(), 0, 1e-30);
}

TEST(RowKernels, CrossEntropyTakesLogitsOfAnySize) {
  for (const float scale : {0.1f, 10.0f, 1000.0f}) {
    const at::Tensor logits = Random(37, 1003, scale, 2), exact = logits.to(at::kDouble);
    const at::Tensor targets = at::empty({37}, at::kLong);
    for (int64_t i = 0; i < 37; ++i) targets.mutable_data_ptr<int64_t>()[i] = i * 27;
    const at::Tensor log = at::log_softmax(exact, 1);
    const double right = -log.gather(1, targets.unsqueeze(1)).sum().item<double>();
    EXPECT_NEAR(Loss(logits, targets, 0), right, 1e-6 * right);
    EXPECT_EQ(Largest(logits.to(at::kDouble) - exact), 0) << "without a scale the logits stay";
    EXPECT_NEAR(Loss(logits, targets, 0.25), right, 1e-6 * right);
    const at::Tensor gradient = log.exp().scatter_add(1, targets.unsqueeze(1), -at::ones({37, 1}, at::kDouble)) * 0.25;
    EXPECT_LT(Largest(logits.to(at::kDouble) - gradient), 5e-7);
  }
}

TEST(RowKernels, InfiniteAndUndefinedNumbersAreNotHidden) {
  const at::Tensor logits = Random(3, 50, 1, 3), targets = at::zeros({3}, at::kLong);
  logits[1][7] = std::nanf("");
  EXPECT_FALSE(std::isfinite(Loss(logits, targets, 0.5)));
  EXPECT_TRUE(std::isnan(logits[1][3].item<float>()));
  const at::Tensor x = Random(2, 8, 1, 4), out = at::empty_like(x);
  x[0][3] = std::nanf("");
  AddAndGelu(x, at::zeros({8}), out);
  EXPECT_TRUE(std::isnan(out[0][3].item<float>()));
  const at::Tensor narrow = at::empty({2, 8}, at::kBFloat16), sums = at::zeros({8});
  x[1][2] = std::bit_cast<float>(0x7fffffffu);  // NaN, whose bits would round to those of a number
  x[1][3] = -std::numeric_limits<float>::infinity(), x[1][4] = std::numeric_limits<float>::max();
  NarrowAndSum(x, narrow, sums);
  EXPECT_TRUE(std::isnan(narrow[0][3].item<float>()) && std::isnan(narrow[1][2].item<float>()));
  EXPECT_EQ(narrow[1][3].item<float>(), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(narrow[1][4].item<float>(), std::numeric_limits<float>::infinity());
}

TEST(RowKernels, LongColumnsKeepTheirDigits) {
  const int64_t rows = 100'000;
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 5}) {
    at::set_num_threads(threads);
    const at::Tensor d = at::full({rows, 3}, 0.1f), sums = at::zeros({3});
    AddColumnSums(d, sums);
    EXPECT_NEAR(sums[1].item<double>() / (rows * 0.1), 1, 1e-6) << threads << " threads";
  }
  at::set_num_threads(before);
}

// Threads share the rows; only the order of sums over rows may differ, and equal threads give equal bits.
TEST(RowKernels, ThreadsChangeNothingButTheOrderOfSums) {
  struct Result {
    at::Tensor normed, dx, dw, db;
  };
  const int64_t rows = 1001, width = 96;
  const auto run = [&](int threads) {
    at::set_num_threads(threads);
    const at::Tensor x = Random(rows, width, 1, 5), w = Random(1, width, 1, 6).view(-1), b = w * 2;
    const at::Tensor statistics = at::empty({rows, 2}), d = Random(rows, width, 1, 7);
    Result r{at::empty_like(x), Random(rows, width, 1, 8), at::zeros({width}), at::zeros({width})};
    Norm(x, w, b, r.normed, statistics);
    NormBackward(d, x, statistics, w, r.dx, r.dw, r.db);
    return r;
  };
  const Result one = run(1), two = run(2), again = run(2);
  at::set_num_threads(1);
  EXPECT_TRUE(one.normed.equal(two.normed) && one.dx.equal(two.dx));
  EXPECT_LT(Largest(one.dw - two.dw), 1e-5 * Largest(one.dw));
  EXPECT_LT(Largest(one.db - two.db), 1e-5 * Largest(one.db));
  EXPECT_TRUE(two.dw.equal(again.dw) && two.db.equal(again.db));
  EXPECT_FALSE(one.dw.equal(two.dw)) << "the second thread did nothing";
}

// What a number to bf16 and back is away from itself at most, relative to it.
constexpr double kHalfUnit = 1.0 / 256;

// Bf16 in and out, and nothing else rounded to it: each number is the nearest to that of float64.
TEST(RowKernels, Bf16IsRoundedOnceAtTheEnd) {
  const int64_t rows = 65, width = 70;
  const auto narrow = [](const at::Tensor& t) { return t.to(at::kBFloat16); };
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  const auto expect = [&](const at::Tensor& out, const at::Tensor& right) {
    EXPECT_LE(Largest((wide(out) - right) / (right.abs() + 1e-3)), 1.01 * kHalfUnit);
  };
  const at::Tensor x = Random(rows, width, 1, 1), gemm = narrow(Random(rows, width, 1, 2));
  const at::Tensor w = narrow(Random(1, width, 1, 3).view(-1)), b = narrow(Random(1, width, 1, 4).view(-1));
  const at::Tensor out = at::empty_like(gemm), statistics = at::empty({rows, 2}), sum = at::empty_like(x);
  const auto normed = [&](const at::Tensor& t) { return at::layer_norm(wide(t), {width}, wide(w), wide(b), 1e-5); };
  Norm(x, w, b, out, statistics);
  expect(out, normed(x));
  AddAndNorm(x, gemm, b, w, b, sum, out, statistics);
  EXPECT_LT(Largest(wide(sum) - (wide(x) + wide(gemm) + wide(b))), 1e-6);
  expect(out, normed(sum));
  NormAgain(sum, statistics, w, b, out);
  expect(out, normed(sum));
  AddGemm(x, gemm, b, sum);
  EXPECT_LT(Largest(wide(sum) - (wide(x) + wide(gemm) + wide(b))), 1e-6);
  AddAndGelu(gemm, b, out);
  const at::Tensor gelu = at::gelu(wide(gemm) + wide(b), "tanh");
  expect(out, gelu);
  const at::Tensor d = narrow(Random(rows, width, 1, 5)), sums = at::ones({width}), given = wide(d);
  const at::Tensor slope = at::gelu_backward(given, wide(gemm) + wide(b), "tanh");
  GeluBackward(gemm, b, out, d, sums);
  expect(out, gelu);
  expect(d, slope);
  EXPECT_LT(Largest(wide(sums) - 1 - slope.sum(0)), 1e-4) << "sums are of what was not rounded";
  AddRounded(gemm, 0.5, x);
  EXPECT_LT(Largest(wide(x) - wide(Random(rows, width, 1, 1)) - 0.5 * wide(gemm)), 1e-6);
  NarrowAndSum(x, out, sums.zero_());
  EXPECT_TRUE(out.equal(narrow(x))) << "rounded as LibTorch does";
  EXPECT_LT(Largest(wide(sums) - wide(x).sum(0)), 1e-4);
}

// Every number of fp16, and around every number: those halfway to the next one, and one step of fp32 beside them. By
// the CPU's code and by that of GPUs; LibTorch's casts are the reference.
TEST(RowKernels, Fp16IsWidenedExactlyAndRoundedToTheNearest) {
  const int64_t rows = 256, width = 256;
  const at::Tensor all = at::empty({rows, width}, at::kHalf);
  for (int i = 0; i < rows * width; ++i) all.mutable_data_ptr<c10::Half>()[i].x = static_cast<uint16_t>(i);
  const at::Tensor right = all.to(at::kFloat), finite = right.isfinite();
  const auto same = [](const at::Tensor& a, const at::Tensor& b) {  // in every bit, but for which NaN it is
    return a.eq(b).logical_and(a.signbit().eq(b.signbit())).logical_or(a.isnan().logical_and(b.isnan())).all();
  };
  const at::Tensor wide = at::empty({rows, width});
  Widen(all, wide);
  EXPECT_TRUE(same(wide, right).item<bool>());
  const at::Tensor zero = at::zeros({rows, width}), none = at::zeros({width}, at::kHalf);
  AddGemm(zero, all, none, wide, RowCode::kDevice);
  EXPECT_TRUE(same(wide, right + 0.0).item<bool>());
  const at::Tensor next = right.view(-1).roll({-1}).view({rows, width}), between = (right + next) / 2;
  const at::Tensor narrow = at::empty_like(all), sums = at::zeros({width});
  int checked = 0;
  for (const at::Tensor& x : {right, between, between * (1 + 0x1p-23), between * (1 - 0x1p-23), right * 0x1p-10,
                              right * 3.0000001f, right / 65504 * 65519.99f, right / 65504 * 65520}) {
    Round(x, at::Tensor(), narrow);
    EXPECT_TRUE(same(narrow, x.to(at::kHalf)).item<bool>()) << ++checked;
    NarrowAndSum(x.contiguous(), narrow.zero_(), sums, RowCode::kDevice);
    EXPECT_TRUE(same(narrow, x.to(at::kHalf)).item<bool>()) << checked << ", by the programs of GPUs";
  }
}

// LibTorch's own casts are the reference; rows of both matrices lie apart.
TEST(RowKernels, PanelsAreWidenedExactlyAndRoundedOnce) {
  const int64_t rows = 37, width = 101;
  const at::Tensor apart = Random(rows, width + 3, 1, 1), x = apart.narrow(1, 0, width);
  const at::Tensor bias = Random(1, width, 1, 2).view(-1).to(at::kBFloat16);
  const at::Tensor room = at::zeros({rows, width + 7}, at::kBFloat16), narrow = room.narrow(1, 0, width);
  Round(x, at::Tensor(), narrow);
  EXPECT_TRUE(narrow.equal(x.to(at::kBFloat16)));
  const at::Tensor wide = at::empty({rows, width});
  Widen(narrow, wide);
  EXPECT_TRUE(wide.equal(narrow.to(at::kFloat)));
  Round(x, bias, narrow);
  EXPECT_TRUE(narrow.equal((x + bias.to(at::kFloat)).to(at::kBFloat16)));
  EXPECT_TRUE(room.narrow(1, width, 7).equal(at::zeros({rows, 7}, at::kBFloat16))) << "what lies between the rows";
  const at::Tensor sum = at::ones({rows, width + 1}), to = sum.narrow(1, 0, width);
  AddRounded(x, 1, to);
  EXPECT_TRUE(to.equal(x.to(at::kBFloat16).to(at::kFloat) + 1)) << "it is rounded before it is added";
  EXPECT_TRUE(sum.narrow(1, width, 1).equal(at::ones({rows, 1})));
}

TEST(RowKernels, Bf16CrossEntropyIsComputedInFp32) {
  const int64_t rows = 37, width = 1003;
  const at::Tensor padded = Random(rows, width + 5, 3, 2).to(at::kBFloat16), logits = padded.narrow(1, 0, width);
  const at::Tensor exact = logits.to(at::kDouble), beside = padded.narrow(1, width, 5).clone();
  const at::Tensor targets = at::empty({rows}, at::kLong);
  for (int64_t i = 0; i < rows; ++i) targets.mutable_data_ptr<int64_t>()[i] = i * 27;
  const at::Tensor log = at::log_softmax(exact, 1);
  const double right = -log.gather(1, targets.unsqueeze(1)).sum().item<double>();
  EXPECT_NEAR(Loss(logits, targets, 0), right, 1e-6 * right);
  EXPECT_TRUE(logits.to(at::kDouble).equal(exact)) << "without a scale the logits stay";
  EXPECT_NEAR(Loss(logits, targets, 0.25), right, 1e-6 * right);
  const at::Tensor gradient = log.exp().scatter_add(1, targets.unsqueeze(1), -at::ones({rows, 1}, at::kDouble)) * 0.25;
  EXPECT_LE(Largest((logits.to(at::kDouble) - gradient) / (gradient.abs() + 1e-9)), 1.01 * kHalfUnit);
  EXPECT_TRUE(padded.narrow(1, width, 5).equal(beside)) << "what lies between the rows";
}

TEST(RowKernels, RefuseWhatTheyWouldMisread) {
  const at::Tensor x = Random(4, 6, 1, 9), out = at::empty_like(x), v = at::zeros({6}), s = at::empty({4, 2});
  EXPECT_THROW(Norm(x.t().contiguous().t(), v, v, out, s), c10::Error);
  EXPECT_THROW(Norm(x, v, v, out.to(at::kLong), s), c10::Error);
  EXPECT_THROW(Norm(x.to(at::kBFloat16), v, v, out, s), c10::Error);
  EXPECT_THROW(Norm(x, v, v, out.to(at::kBFloat16), s), c10::Error) << "vectors in fp32 beside GEMMs in bf16";
}

}  // namespace
}  // namespace muster::units
