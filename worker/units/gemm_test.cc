// Against products in float64 of the same bf16 or fp16 numbers, rounded where the native GEMM rounds.
#include "worker/units/gemm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "worker/units/autograd.h"

namespace muster::units {
namespace {

// In [-0.5, 0.5), without a pattern that a shifted or transposed block would share.
at::Tensor Numbers(int64_t rows, int64_t columns, uint64_t seed) {
  at::Tensor t = at::empty({rows, columns});
  float* out = t.mutable_data_ptr<float>();
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (int64_t i = 0; i < t.numel(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out[i] = static_cast<float>(state >> 40) / static_cast<float>(1 << 24) - 0.5f;
  }
  return t.to(at::kBFloat16);
}

// The same numbers, transposed in memory.
at::Tensor Turned(const at::Tensor& t) { return t.t().contiguous().t(); }

at::Tensor Exact(const at::Tensor& x, const at::Tensor& w) { return x.to(at::kDouble).matmul(w.to(at::kDouble)); }

at::Tensor RoundedToBf16(const at::Tensor& exact) { return exact.to(at::kFloat).to(at::kBFloat16).to(at::kDouble); }

// One ulp of bf16, whose significand has 8 bits, is up to 2^-7 of a number. Where the summands cancel, what fp32 loses
// counts: its ulp of 2^-23 times what was summed.
void ExpectWithinOneUlp(const at::Tensor& got, const at::Tensor& exact, int64_t summands) {
  const at::Tensor right = RoundedToBf16(exact);
  const at::Tensor error = (got.to(at::kDouble) - right).abs();
  const double cancelled = 0.25 * static_cast<double>(summands) * 0x1p-23;
  EXPECT_LE((error - (right.abs() * 0x1p-7 + cancelled)).max().item<double>(), 0.0);
  // And nearly all are equal: only those near the middle between two numbers may go the other way.
  EXPECT_LE((error > 0).to(at::kDouble).mean().item<double>(), 0.01);
}

struct Size {
  int64_t m, k, n;
};
// Around the panels' 1,024 in each dimension, with rests; and small and odd ones.
const std::vector<Size> kSizes = {{1, 1, 1},      {3, 5, 7},     {64, 36, 108},      {1, 128, 512},  {70, 1030, 9},
                                  {1100, 33, 17}, {5, 40, 2050}, {1025, 1024, 1026}, {3, 1030, 1031}};

class PanelGemms : public testing::Test {
 protected:
  PanelGemms() { at::set_num_threads(2); }
  const c10::AutoGradMode off_{false};
  const Gemms panels_{Bf16Gemms::kPanels, ChooseFp32Gemms().gemms};  // as a rank here computes
  const Gemms native_{Bf16Gemms::kNative};
};

TEST_F(PanelGemms, AreWithinOneUlpOfFloat64) {
  for (const Size& s : kSizes) {
    SCOPED_TRACE(testing::Message() << s.m << " x " << s.k << " x " << s.n);
    const at::Tensor x = Numbers(s.m, s.k, 1), w = Numbers(s.k, s.n, 2), exact = Exact(x, w);
    for (const at::Tensor& left : {x, Turned(x)}) {
      for (const at::Tensor& right : {w, Turned(w)}) {
        const at::Tensor y = at::full({s.m, s.n}, NAN, x.options());
        panels_.Compute(left, right, y);
        ExpectWithinOneUlp(y, exact, s.k);
      }
    }
  }
}

TEST_F(PanelGemms, RoundTheSumWithTheBiasOnce) {
  for (const Size& s : kSizes) {
    SCOPED_TRACE(testing::Message() << s.m << " x " << s.k << " x " << s.n);
    const at::Tensor x = Numbers(s.m, s.k, 3), w = Numbers(s.k, s.n, 4), bias = Numbers(1, s.n, 5).view(-1);
    const at::Tensor y = at::full({s.m, s.n}, NAN, x.options());
    panels_.ComputeWithBias(x, w, bias, y);
    ExpectWithinOneUlp(y, Exact(x, w) + bias.to(at::kDouble), s.k);
  }
}

// What a sum already has keeps its fp32 digits; what is added has bf16's.
// As the polynomial of Newton-Schulz: b A + c A A, and a X + B X with X transposed in memory.
TEST_F(PanelGemms, RoundTheCombinationOnce) {
  for (const Size& s : kSizes) {
    const at::Tensor x = Numbers(s.m, s.k, 1), w = Numbers(s.k, s.n, 2), sum = Numbers(s.m, s.n, 3);
    const at::Tensor exact = sum.to(at::kDouble).mul(-4.775).add(Exact(x, w), 2.0315);
    for (const at::Tensor& left : {x, Turned(x)}) {
      const at::Tensor y = at::empty({s.m, s.n}, at::kBFloat16);
      panels_.Combine(sum, -4.775, left, w, 2.0315, y);
      ExpectWithinOneUlp(y, exact, 4 * s.k);
    }
  }
}

TEST_F(PanelGemms, AddRoundedProductsToWideSums) {
  for (const Size& s : kSizes) {
    SCOPED_TRACE(testing::Message() << s.m << " x " << s.k << " x " << s.n);
    const at::Tensor x = Numbers(s.k, s.m, 6).t(), w = Numbers(s.k, s.n, 7), sum = at::full({s.m, s.n}, 0.125f);
    panels_.AddTo(sum, x, w, -2);
    const at::Tensor added = (0.125 - sum.to(at::kDouble)) / 2;
    ExpectWithinOneUlp(RoundedToBf16(added), Exact(x, w), s.k);
    EXPECT_LE((added - RoundedToBf16(added)).abs().max().item<double>(), 0x1p-20 * static_cast<double>(s.k))
        << "what was added was not rounded to bf16";
  }
}

// Rows of a matrix like the head's logits lie further apart than they are wide.
TEST_F(PanelGemms, TakeAndGiveRowsThatLieApart) {
  const at::Tensor padded = Numbers(40, 64, 8), x = padded.narrow(1, 0, 61), w = Numbers(61, 30, 9);
  const at::Tensor room = at::full({40, 32}, 7, x.options()), y = room.narrow(1, 0, 30);
  panels_.Compute(x, w, y);
  ExpectWithinOneUlp(y, Exact(x, w), 61);
  EXPECT_TRUE(room.narrow(1, 30, 2).equal(at::full({40, 2}, 7, x.options())));
  const at::Tensor sparse = Numbers(122, 60, 10).slice(0, 0, 122, 2).slice(1, 0, 60, 2);  // neither way dense
  const at::Tensor z = at::empty({40, 30}, x.options());
  panels_.Compute(x, sparse, z);
  ExpectWithinOneUlp(z, Exact(x, sparse), 61);
}

// On a CPU with AMX, oneDNN reads beyond the rows of a left operand. NaN stands for memory that was never written.
TEST(NativeGemms, AreNotSpoiledByWhatLiesBehindRows) {
  const c10::AutoGradMode off(false);
  const Gemms gemms(Bf16Gemms::kNative);
  for (const int64_t k : {1, 31, 33, 61, 100, 129}) {
    SCOPED_TRACE(k);
    const at::Tensor padded = at::full({50, (k + 63) / 32 * 32}, NAN, at::kBFloat16), x = padded.narrow(1, 0, k);
    x.copy_(Numbers(50, k, 1));
    const at::Tensor w = Numbers(k, 48, 2), exact = Exact(x, w), y = at::full({50, 48}, NAN, x.options());
    gemms.Compute(x, w, y);
    ExpectWithinOneUlp(y, exact, k);
    gemms.ComputeWithBias(x, w, at::zeros({48}, x.options()), y);
    ExpectWithinOneUlp(y, exact, k);
    gemms.Combine(at::zeros({50, 48}, x.options()), 1, x, w, 1, y);
    ExpectWithinOneUlp(y, exact, k);
    ExpectWithinOneUlp(gemms.Differentiable(x, w, at::Tensor()), exact, k);
    const at::Tensor sum = at::zeros({50, 48}), narrow_sum = at::zeros({50, 48}, x.options());
    gemms.AddTo(sum, x, w);
    ExpectWithinOneUlp(sum, exact, k);
    gemms.AddTo(narrow_sum, x, w);
    ExpectWithinOneUlp(narrow_sum, exact, k);
    gemms.ComputeOfPadded(padded, w, y);
    ExpectWithinOneUlp(y, exact, k);
  }
}

// Which shows that the native one rounds there too, wherever this test runs.
TEST_F(PanelGemms, EqualNativeOnesButForTheOrderOfSums) {
  const at::Tensor x = Numbers(96, 160, 11), w = Numbers(160, 80, 12), bias = Numbers(1, 80, 13).view(-1);
  const at::Tensor a = at::empty({96, 80}, x.options()), b = at::empty_like(a);
  native_.Compute(x, w, a), panels_.Compute(x, w, b);
  ExpectWithinOneUlp(a, Exact(x, w), 160);
  EXPECT_LE((a != b).to(at::kDouble).mean().item<double>(), 0.01);
  native_.ComputeWithBias(x, w, bias, a), panels_.ComputeWithBias(x, w, bias, b);
  EXPECT_LE((a != b).to(at::kDouble).mean().item<double>(), 0.01);
}

TEST_F(PanelGemms, GradientsAreRoundedWhereTheNativeOnesAre) {
  const c10::AutoGradMode on(true);
  std::vector<std::vector<at::Tensor>> both;
  for (const Gemms& gemms : {native_, panels_}) {
    const std::vector<at::Tensor> leaves = {Numbers(48, 40, 14).requires_grad_(true),
                                            Numbers(40, 56, 15).requires_grad_(true),
                                            Numbers(1, 56, 16).view(-1).detach().requires_grad_(true)};
    const at::Tensor y = gemms.Differentiable(leaves[0], leaves[1], leaves[2]);
    both.push_back(Gradients(y, Numbers(48, 56, 17), leaves));
    both.back().push_back(y.detach());
  }
  for (size_t i = 0; i < both[0].size(); ++i) {
    EXPECT_EQ(both[1][i].scalar_type(), at::kBFloat16);
    ExpectWithinOneUlp(both[1][i], both[0][i].to(at::kDouble), 56);
  }
}

// fp16 has one way on a CPU, whatever was chosen for bf16. Sums stay in fp32: what fp16 cannot hold is no infinity.
TEST_F(PanelGemms, ComputeFp16) {
  for (const Size& s : kSizes) {
    SCOPED_TRACE(testing::Message() << s.m << " x " << s.k << " x " << s.n);
    const at::Tensor x = Numbers(s.m, s.k, 21).to(at::kHalf), w = Turned(Numbers(s.k, s.n, 22)).to(at::kHalf);
    const at::Tensor bias = Numbers(1, s.n, 23).view(-1).to(at::kHalf), y = at::full({s.m, s.n}, NAN, x.options());
    native_.ComputeWithBias(x, w, bias, y);
    const at::Tensor exact = Exact(x, w) + bias.to(at::kDouble), right = exact.to(at::kHalf).to(at::kDouble);
    const double cancelled = 0.25 * static_cast<double>(s.k) * 0x1p-23 + 0x1p-24;
    EXPECT_LE(((y.to(at::kDouble) - right).abs() - (right.abs() * 0x1p-10 + cancelled)).max().item<double>(), 0);
    const at::Tensor sum = at::full({s.m, s.n}, 3.0f);
    native_.AddTo(sum, x, w, 1e6);
    EXPECT_LE((sum - 3 - Exact(x, w) * 1e6).abs().max().item<double>(), 1e6 * (1e-6 + cancelled));
  }
}

TEST_F(PanelGemms, EmptyMatricesAndOtherDtypesGoToLibTorch) {
  const at::Tensor none = at::empty({0, 16}, at::kBFloat16), w = Numbers(16, 8, 18);
  const at::Tensor y = at::empty({0, 8}, at::kBFloat16), sum = at::full({16, 8}, 3.0f);
  panels_.Compute(none, w, y);
  panels_.ComputeWithBias(none, w, Numbers(1, 8, 19).view(-1), y);
  panels_.AddTo(sum, none.t(), at::empty({0, 8}, at::kBFloat16));
  EXPECT_TRUE(sum.equal(at::full({16, 8}, 3.0f)));
  const at::Tensor a = Numbers(4, 16, 20).to(at::kDouble), b = w.to(at::kDouble), c = at::empty({4, 8}, at::kDouble);
  panels_.Compute(a, b, c);
  EXPECT_LT((c - a.matmul(b)).abs().max().item<double>(), 1e-15);
}

TEST_F(PanelGemms, RefuseSizesThatDoNotFit) {
  EXPECT_THROW(panels_.Compute(Numbers(4, 5, 1), Numbers(6, 4, 1), Numbers(4, 4, 1)), c10::Error);
  EXPECT_THROW(panels_.Compute(Numbers(4, 5, 1), Numbers(5, 4, 1), Numbers(4, 3, 1)), std::exception);
}

TEST(ChooseBf16Gemms, FollowsTheInstructionsAndSaysWhy) {
  using enum InstructionSet;
  struct Case {
    UsableInstructions instructions;
    bool onednn;
    Bf16Gemms gemms;
    std::string log;
  };
  for (const Case& c : {
           Case{{kAvx512Bf16, kAvx512Bf16, ""}, true, Bf16Gemms::kNative, "bf16 GEMMs: native (AVX-512 BF16)"},
           Case{{kAmxBf16, kAmxBf16, ""}, true, Bf16Gemms::kNative, "bf16 GEMMs: native (AMX BF16)"},
           Case{{kAvx2, kAvx2, ""},
                true,
                Bf16Gemms::kPanels,
                "bf16 GEMMs: through fp32 panels (this CPU has AVX2 only), about as fast as fp32; faster ones need "
                "AVX-512 BF16 or AMX BF16"},
           Case{{kAvx512, kAvx512, ""},
                true,
                Bf16Gemms::kPanels,
                "bf16 GEMMs: through fp32 panels (this CPU has AVX-512 only), about as fast as fp32; faster ones need "
                "AVX-512 BF16 or AMX BF16"},
           Case{{kAmxBf16, kAvx2, "ONEDNN_MAX_CPU_ISA=AVX2"},
                true,
                Bf16Gemms::kPanels,
                "bf16 GEMMs: through fp32 panels (ONEDNN_MAX_CPU_ISA=AVX2 hides this CPU's AMX BF16), about as fast as "
                "fp32; faster ones need AVX-512 BF16 or AMX BF16"},
           Case{{kAmxBf16, kAmxBf16, ""},
                false,
                Bf16Gemms::kPanels,
                "bf16 GEMMs: through fp32 panels (this LibTorch is without oneDNN)"},
       }) {
    const Bf16Choice choice = ChooseBf16Gemms(c.instructions, c.onednn);
    EXPECT_EQ(choice.gemms, c.gemms);
    EXPECT_EQ(choice.log, c.log);
  }
}

}  // namespace
}  // namespace muster::units
