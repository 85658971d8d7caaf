// The kernels, by the CPU's code and by the programs of GPUs, against their formulas by LibTorch's plain operators and
// autograd in float64, on equal numbers.
#include "worker/units/llama_rows.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "worker/units/autograd.h"
#include "worker/units/float64_test.h"
#include "worker/units/row_kernels.h"

namespace muster::units {
namespace {

struct Matrices {
  int64_t rows, width;
};
// Below a vector, beside a multiple of one, and more rows than are summed at once.
const std::vector<Matrices> kMatrices = {{1, 1}, {1, 7}, {3, 257}, {5, 33}, {64, 48}, {301, 70}};

struct HeadSizes {
  int64_t rows, heads, head;
};
const std::vector<HeadSizes> kHeadSizes = {{1, 1, 2}, {1, 4, 6}, {7, 1, 34}, {23, 2, 32}, {150, 3, 10}};

class LlamaRows : public testing::TestWithParam<std::tuple<at::ScalarType, RowCode>> {
 protected:
  LlamaRows() { at::set_num_threads(1); }  // threads that wait for each other are slow on a busy machine
  at::ScalarType narrow() const { return std::get<0>(GetParam()); }
  at::ScalarType wide() const { return WideType(narrow()); }
  RowCode code() const { return std::get<1>(GetParam()); }
};

const auto kTypes = testing::Values(at::kFloat, at::kBFloat16, at::kHalf, at::kDouble);
INSTANTIATE_TEST_SUITE_P(TypesAndCodes, LlamaRows,
                         testing::Combine(kTypes, testing::Values(RowCode::kVector, RowCode::kDevice)),
                         [](const auto& info) {
                           const bool programs = std::get<1>(info.param) == RowCode::kDevice;
                           return std::string(c10::toString(std::get<0>(info.param))) + (programs ? "Programs" : "");
                         });

at::Tensor ExactRmsNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  return x / ((x * x).mean({-1}, true) + epsilon).sqrt() * weight;
}

at::Tensor ExactSwiGlu(const at::Tensor& gate_up) {
  const int64_t inner = gate_up.size(1) / 2;
  const at::Tensor gate = gate_up.narrow(1, 0, inner), up = gate_up.narrow(1, inner, inner);
  return gate / (1 + (-gate).exp()) * up;
}

// As Hugging Face's apply_rotary_pos_emb; tables [context, head / 2].
at::Tensor ExactRope(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, int64_t tokens,
                     int64_t position) {
  const int64_t half = x.size(2) / 2;
  const at::Tensor at = at::arange(x.size(0), at::kLong).remainder(tokens) + position;
  const auto rows = [&](const at::Tensor& table) {
    const at::Tensor angles = table.to(at::kDouble).index_select(0, at).unsqueeze(1);
    return at::cat({angles, angles}, 2);
  };
  const at::Tensor rotated = at::cat({-x.narrow(2, half, half), x.narrow(2, 0, half)}, 2);
  return x * rows(cosine) + rotated * rows(sine);
}

// Heads in the middle of wider rows.
struct Slice {
  at::Tensor around, heads;

  Slice(const HeadSizes& s, at::ScalarType type, int seed)
      : around(NormalNumbers({s.rows, 3 + s.heads * s.head + 2}, type, seed)),
        heads(around.narrow(1, 3, s.heads * s.head).view({s.rows, s.heads, s.head})),
        before_(around.clone()) {}

  void ExpectTheRestUntouched() const {
    const int64_t end = 3 + heads.size(1) * heads.size(2);
    EXPECT_TRUE(around.narrow(1, 0, 3).equal(before_.narrow(1, 0, 3)));
    EXPECT_TRUE(around.narrow(1, end, 2).equal(before_.narrow(1, end, 2)));
  }

 private:
  at::Tensor before_;
};

TEST_P(LlamaRows, RmsNormIsItsFormula) {
  for (const auto& [rows, width] : kMatrices) {
    for (const double epsilon : {1e-6, 0.5}) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width));
      const at::Tensor x = NormalNumbers({rows, width}, wide(), 1), weight = NormalNumbers({width}, narrow(), 2);
      const at::Tensor out = at::empty({rows, width}, narrow()), statistics = at::empty({rows}, wide());
      RmsNorm(x, weight, epsilon, out, statistics, code());
      const at::Tensor leaf = Leaf(x), weight_leaf = Leaf(weight), right = ExactRmsNorm(leaf, weight_leaf, epsilon);
      ExpectFloat64(out, right, "out");
      ExpectFloat64(statistics, 1 / ((leaf * leaf).mean({1}) + epsilon).sqrt(), "statistics");
      const at::Tensor again = at::empty_like(out);
      RmsNormAgain(x, statistics, weight, again, code());
      EXPECT_TRUE(again.equal(out));
      // Gradients are added to what is there.
      const at::Tensor d = NormalNumbers({rows, width}, narrow(), 3);
      const at::Tensor dx = NormalNumbers({rows, width}, wide(), 4), dw = NormalNumbers({width}, wide(), 5);
      const std::vector<at::Tensor> gradients = Gradients(right, d.to(at::kDouble), {leaf, weight_leaf});
      const at::Tensor right_dx = dx.to(at::kDouble) + gradients[0], right_dw = dw.to(at::kDouble) + gradients[1];
      RmsNormBackward(d, x, statistics, weight, dx, dw, code());
      ExpectFloat64(dx, right_dx, "d_x");
      ExpectFloat64(dw, right_dw, "d_weight");
    }
  }
}

TEST_P(LlamaRows, GemmsAreAddedToTheResidualStream) {
  for (const auto& [rows, width] : kMatrices) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width));
    const at::Tensor x = NormalNumbers({rows, width}, wide(), 1), gemm = NormalNumbers({rows, width}, narrow(), 2);
    const at::Tensor weight = NormalNumbers({width}, narrow(), 3), sum = at::empty_like(x);
    const at::Tensor right = x.to(at::kDouble) + gemm.to(at::kDouble);
    Add(x, gemm, sum, code());
    ExpectFloat64(sum, right, "sum");
    sum.zero_();
    const at::Tensor out = at::empty({rows, width}, narrow()), statistics = at::empty({rows}, wide());
    AddAndRmsNorm(x, gemm, weight, 1e-2, sum, out, statistics, code());
    ExpectFloat64(sum, right, "sum before the norm");
    ExpectFloat64(out, ExactRmsNorm(right, weight.to(at::kDouble), 1e-2), "out");
    ExpectFloat64(statistics, 1 / ((right * right).mean({1}) + 1e-2).sqrt(), "statistics");
    if (narrow() == wide()) {
      const at::Tensor in_place = gemm.clone(), added = gemm.clone(), normed = at::empty_like(out);
      AddAndRmsNorm(x, in_place, weight, 1e-2, in_place, normed, statistics, code());
      Add(x, added, added, code());
      EXPECT_TRUE(in_place.equal(sum) && normed.equal(out) && added.equal(sum));
    }
    Add(x, gemm, x, code());
    EXPECT_TRUE(x.equal(sum));
  }
}

TEST_P(LlamaRows, SwiGluIsItsFormula) {
  for (const auto& [rows, inner] : kMatrices) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(inner));
    const at::Tensor gate_up = NormalNumbers({rows, 2 * inner}, narrow(), 1, 2), leaf = Leaf(gate_up);
    const at::Tensor out = at::empty({rows, inner}, narrow()), right = ExactSwiGlu(leaf);
    SwiGlu(gate_up, out, code());
    ExpectFloat64(out, right, "out");
    const at::Tensor d = NormalNumbers({rows, inner}, narrow(), 2), d_before = d.clone();
    const at::Tensor gradient = Gradients(right, d.to(at::kDouble), {leaf})[0];
    const at::Tensor again = at::empty_like(out), d_gate_up = at::empty_like(gate_up);
    SwiGluBackward(gate_up, again, d, d_gate_up, code());
    ExpectFloat64(again, right, "out again");
    ExpectFloat64(d_gate_up, gradient, "d_gate_up");
    EXPECT_TRUE(d.equal(d_before));
    SwiGluBackward(gate_up, again, d, gate_up, code());
    EXPECT_TRUE(gate_up.equal(d_gate_up)) << "in place";
  }
}

TEST_P(LlamaRows, SwiGluTakesGatesOfAnySize) {
  const at::Tensor gate_up = at::full({1, 14}, 2, narrow()), out = at::empty({1, 7}, narrow());
  const std::vector<double> gates = {0, 100, -100, 30'000, -30'000, 1e-20, std::nan("")};
  for (int64_t i = 0; i < 7; ++i) gate_up[0][i] = gates[i];
  const auto number = [](const at::Tensor& t, int64_t i) { return t[0][i].item<double>(); };
  const auto expect = [&] {
    EXPECT_EQ(number(out, 0), 0);
    EXPECT_EQ(number(out, 1), 200);
    EXPECT_NEAR(number(out, 2), 0, 1e-30);
    EXPECT_EQ(number(out, 3), 2 * number(gate_up, 3));
    EXPECT_NEAR(number(out, 4), 0, 1e-30);
    EXPECT_EQ(number(out, 5), number(gate_up, 5));
    EXPECT_TRUE(std::isnan(number(out, 6)));
  };
  SwiGlu(gate_up, out, code());
  expect();
  const at::Tensor d = at::full({1, 7}, 1, narrow()), d_gate_up = at::empty_like(gate_up);
  SwiGluBackward(gate_up, out.zero_(), d, d_gate_up, code());
  expect();
  for (const auto& [at, slope] : std::vector<std::pair<int64_t, double>>{{0, 1}, {1, 2}, {2, 0}, {3, 2}, {4, 0}}) {
    EXPECT_NEAR(number(d_gate_up, at), slope, 1e-30) << gates[at];
  }
  EXPECT_TRUE(std::isnan(number(d_gate_up, 6)) && std::isnan(number(d_gate_up, 13)));
}

TEST_P(LlamaRows, RopeTurnsAsHuggingFace) {
  for (const HeadSizes& s : kHeadSizes) {
    for (const int64_t tokens : {int64_t{1}, int64_t{5}, s.rows}) {
      for (const int64_t position : {0, 9}) {
        SCOPED_TRACE(std::to_string(s.rows) + " rows, " + std::to_string(tokens) + " tokens from " +
                     std::to_string(position));
        const at::Tensor rate = at::pow(at::full({s.head / 2}, 1e4, at::kDouble),
                                        at::arange(s.head / 2, at::kDouble) * (-2.0 / static_cast<double>(s.head)));
        const at::Tensor angles = at::arange(tokens + position, at::kDouble).unsqueeze(1) * rate;
        const at::Tensor cosine = angles.cos().to(wide()), sine = angles.sin().to(wide());
        const Slice x(s, narrow(), 1), d(s, narrow(), 2);
        const at::Tensor leaf = Leaf(x.heads), right = ExactRope(leaf, cosine, sine, tokens, position);
        const at::Tensor gradient = Gradients(right, d.heads.to(at::kDouble), {leaf})[0];
        Rope(x.heads, cosine, sine, tokens, position, false, code());
        ExpectFloat64(x.heads, right, "turned");
        x.ExpectTheRestUntouched();
        Rope(d.heads, cosine, sine, tokens, position, true, code());
        ExpectFloat64(d.heads, gradient, "gradient");
        d.ExpectTheRestUntouched();
      }
    }
  }
}

TEST_P(LlamaRows, HeadsAreNormedEach) {
  for (const HeadSizes& s : kHeadSizes) {
    for (const double epsilon : {1e-6, 0.5}) {
      SCOPED_TRACE(std::to_string(s.rows) + " rows of " + std::to_string(s.heads) + " heads");
      const Slice x(s, narrow(), 1), out(s, narrow(), 2), d(s, narrow(), 3);
      const at::Tensor weight = NormalNumbers({s.head}, narrow(), 4),
                       statistics = at::empty({s.rows * s.heads}, wide());
      const at::Tensor leaf = Leaf(x.heads), weight_leaf = Leaf(weight);
      const at::Tensor right = ExactRmsNorm(leaf, weight_leaf, epsilon);
      HeadNorm(x.heads, weight, epsilon, out.heads, statistics, code());
      ExpectFloat64(out.heads, right, "out");
      ExpectFloat64(statistics, 1 / ((leaf * leaf).mean({2}) + epsilon).sqrt().view({-1}), "statistics");
      out.ExpectTheRestUntouched();
      const at::Tensor dw = NormalNumbers({s.head}, wide(), 5);
      const std::vector<at::Tensor> gradients = Gradients(right, d.heads.to(at::kDouble), {leaf, weight_leaf});
      const at::Tensor right_dw = dw.to(at::kDouble) + gradients[1];
      HeadNormBackward(d.heads, x.heads, statistics, weight, dw, code());
      ExpectFloat64(d.heads, gradients[0], "d");
      ExpectFloat64(dw, right_dw, "d_weight");
      d.ExpectTheRestUntouched();
      HeadNorm(x.heads, weight, epsilon, x.heads, statistics, code());
      EXPECT_TRUE(x.heads.equal(out.heads)) << "in place";
      x.ExpectTheRestUntouched();
    }
  }
}

class LlamaRowThreads : public testing::TestWithParam<at::ScalarType> {
 protected:
  at::ScalarType narrow() const { return GetParam(); }
  at::ScalarType wide() const { return WideType(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Types, LlamaRowThreads, kTypes);

// Threads share the rows; only the order of sums over rows may differ, and equal threads give equal bits.
TEST_P(LlamaRowThreads, ChangeNothingButTheOrderOfSums) {
  struct Result {
    std::vector<at::Tensor> rows, sums;
  };
  const int64_t rows = 1001, width = 96, heads = 4, head = width / heads;
  const auto run = [&](int threads) {
    at::set_num_threads(threads);
    const auto wide_rows = [&](int seed) { return NormalNumbers({rows, width}, wide(), seed); };
    const auto narrow_rows = [&](int seed) { return NormalNumbers({rows, width}, narrow(), seed); };
    const auto by_head = [&](const at::Tensor& t) { return t.view({rows, heads, head}); };
    const at::Tensor x = wide_rows(1), gemm = narrow_rows(2), w = NormalNumbers({width}, narrow(), 3);
    const at::Tensor d = narrow_rows(4), dx = wide_rows(5), dw = at::zeros({width}, wide());
    const at::Tensor out = narrow_rows(6), sum = wide_rows(7), normed = narrow_rows(8), again = narrow_rows(9);
    const at::Tensor statistics = at::empty({rows}, wide()), sum_statistics = at::empty({rows}, wide());
    RmsNorm(x, w, 1e-5, out, statistics);
    RmsNormAgain(x, statistics, w, again);
    RmsNormBackward(d, x, statistics, w, dx, dw);
    AddAndRmsNorm(x, gemm, w, 1e-5, sum, normed, sum_statistics);
    const at::Tensor added = wide_rows(10), gate_up = NormalNumbers({rows, 2 * width}, narrow(), 11);
    const at::Tensor swiglu = narrow_rows(12), recomputed = narrow_rows(13), d_gate_up = at::empty_like(gate_up);
    Add(x, gemm, added);
    SwiGlu(gate_up, swiglu);
    SwiGluBackward(gate_up, recomputed, d, d_gate_up);
    const at::Tensor turned = narrow_rows(14), head_out = narrow_rows(15), head_w = w.narrow(0, 0, head).clone();
    const at::Tensor head_statistics = at::empty({rows * heads}, wide()), head_dw = at::zeros({head}, wide());
    const at::Tensor angles = NormalNumbers({100, head / 2}, wide(), 16), d_heads = narrow_rows(17);
    Rope(by_head(turned), angles.cos(), angles.sin(), 91, 9, false);
    HeadNorm(by_head(gemm), head_w, 1e-5, by_head(head_out), head_statistics);
    HeadNormBackward(by_head(d_heads), by_head(gemm), head_statistics, head_w, head_dw);
    return Result{{out, statistics, again, dx, sum, normed, sum_statistics, added, swiglu, recomputed, d_gate_up,
                   turned, head_out, head_statistics, d_heads},
                  {dw, head_dw}};
  };
  const Result one = run(1), two = run(2), same = run(2);
  at::set_num_threads(1);
  for (size_t i = 0; i < one.rows.size(); ++i) EXPECT_TRUE(one.rows[i].equal(two.rows[i])) << i;
  for (size_t i = 0; i < one.sums.size(); ++i) {
    ExpectFloat64(two.sums[i], one.sums[i].to(at::kDouble), "two threads");
    EXPECT_TRUE(two.sums[i].equal(same.sums[i])) << i;
    EXPECT_FALSE(two.sums[i].equal(one.sums[i])) << "the second thread did nothing";
  }
}

TEST(LlamaRowsErrors, RefuseWhatTheyWouldMisread) {
  const at::Tensor x = NormalNumbers({4, 6}, at::kFloat, 1), v = at::zeros({6}), s = at::empty({4});
  const at::Tensor out = at::empty_like(x);
  for (const RowCode code : {RowCode::kVector, RowCode::kDevice}) {
    EXPECT_THROW(RmsNorm(x.t().contiguous().t(), v, 1e-5, out, s, code), c10::Error);
    EXPECT_THROW(RmsNorm(x, v, 1e-5, out.to(at::kBFloat16), s, code), c10::Error)
        << "a weight in fp32 beside GEMMs in bf16";
    EXPECT_THROW(SwiGlu(x, out, code), c10::Error);
    EXPECT_THROW(SwiGluBackward(x, out, out, out, code), c10::Error);
    const at::Tensor heads = x.view({4, 3, 2}), table = at::zeros({8, 1});
    EXPECT_THROW(Rope(heads.transpose(0, 1), table, table, 4, 0, false, code), c10::Error);
    EXPECT_THROW(Rope(x.view({4, 2, 3}), table, table, 4, 0, false, code), c10::Error) << "a head of odd width";
    EXPECT_THROW(Rope(heads, table, table, 4, 5, false, code), c10::Error) << "beyond the tables";
    EXPECT_NO_THROW(Rope(heads, table, table, 4, 4, false, code));
    EXPECT_THROW(HeadNorm(heads, v, 1e-5, x.view({4, 2, 3}), at::empty({12}), code), c10::Error);
  }
}

}  // namespace
}  // namespace muster::units
