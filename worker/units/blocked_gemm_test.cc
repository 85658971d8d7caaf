// Against products in float64 of the same numbers.
#include "worker/units/blocked_gemm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "common/instruction_set.h"
#include "worker/units/fp32_gemms.h"
#include "worker/units/gemm.h"

namespace muster::units {
namespace {

// In [-0.5, 0.5), without a pattern that a shifted or transposed block would share.
at::Tensor Floats(int64_t rows, int64_t columns, uint64_t seed) {
  at::Tensor t = at::empty({rows, columns});
  float* out = t.mutable_data_ptr<float>();
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (int64_t i = 0; i < t.numel(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out[i] = static_cast<float>(state >> 40) / static_cast<float>(1 << 24) - 0.5f;
  }
  return t;
}

at::Tensor TurnedInMemory(const at::Tensor& t) { return t.t().contiguous().t(); }

// Columns of a wider matrix.
at::Tensor ApartInMemory(const at::Tensor& t) {
  const at::Tensor room = at::full({t.size(0), t.size(1) + 24}, NAN);
  const at::Tensor inside = room.narrow(1, 8, t.size(1));
  return inside.copy_(t);
}

// A sum of k products and a beginning, in any order, errs by at most k + 1 halves of an ulp of the sum of their sizes.
void ExpectProduct(const at::Tensor& got, const at::Tensor& x, const at::Tensor& w, const at::Tensor& begin) {
  const at::Tensor a = x.to(at::kDouble), b = w.to(at::kDouble), c = begin.to(at::kDouble);
  const at::Tensor bound = (a.abs().matmul(b.abs()) + c.abs()) * (static_cast<double>(x.size(1) + 1) * 0x1p-24);
  const at::Tensor error = (got.to(at::kDouble) - (a.matmul(b) + c)).abs();
  EXPECT_TRUE((error <= bound).all().item<bool>()) << "off by up to " << error.max().item<double>();
}

struct Sizes3 {
  int64_t m, k, n;
};
// Around the tiles' sizes in each dimension, with rests.
const std::vector<Sizes3> kAroundTiles = {{16, 16, 16},   {17, 19, 23},   {64, 512, 64},   {65, 513, 65},
                                          {256, 64, 128}, {257, 33, 129}, {300, 1030, 17}, {31, 700, 1100},
                                          {515, 40, 513}, {33, 16, 600}};

class BlockedGemm : public testing::Test {
 protected:
  BlockedGemm() { at::set_num_threads(2); }
  const c10::AutoGradMode off_{false};
};

TEST_F(BlockedGemm, MultipliesAndAdds) {
  for (const Sizes3& s : kAroundTiles) {
    SCOPED_TRACE(testing::Message() << s.m << " x " << s.k << " x " << s.n);
    const at::Tensor x = Floats(s.m, s.k, 1), w = Floats(s.k, s.n, 2), row = Floats(1, s.n, 3).view({-1});
    const at::Tensor sum = Floats(s.m, s.n, 4), zero = at::full({1}, 0.0);
    for (const at::Tensor& left : {x, TurnedInMemory(x), ApartInMemory(x)}) {
      for (const at::Tensor& right : {w, TurnedInMemory(w), ApartInMemory(w)}) {
        if (left.stride(1) != 1 && right.stride(1) != 1) continue;
        const at::Tensor y = at::full({s.m, s.n}, NAN);
        ASSERT_TRUE(MultiplyByBlocks(left, right, {}, y));
        ExpectProduct(y, x, w, zero);
        y.fill_(NAN);
        ASSERT_TRUE(MultiplyByBlocks(left, right, row, y));
        ExpectProduct(y, x, w, row);
        y.copy_(sum);
        ASSERT_TRUE(MultiplyByBlocks(left, right, y, y));
        ExpectProduct(y, x, w, sum);
      }
    }
  }
}

TEST_F(BlockedGemm, WritesNothingBesideItsRows) {
  const at::Tensor x = Floats(70, 40, 1), w = Floats(40, 90, 2), room = at::full({72, 100}, 7.0);
  ASSERT_TRUE(MultiplyByBlocks(x, w, {}, room.narrow(0, 1, 70).narrow(1, 4, 90)));
  EXPECT_EQ((room == 7).sum().item<int64_t>(), 72 * 100 - 70 * 90);
  ExpectProduct(room.narrow(0, 1, 70).narrow(1, 4, 90), x, w, at::full({1}, 0.0));
}

// Of a job with other threads or microbatches, an element has the same bits. Without AVX-512 LibTorch computes blocks
// by MKL, which promises less.
TEST_F(BlockedGemm, BitsDependOnNothingElse) {
  const bool by_onednn = FindInstructions().usable >= InstructionSet::kAvx512;
  const at::Tensor x = Floats(530, 1030, 1), w = Floats(1030, 300, 2);
  for (const at::Tensor& left : {x, TurnedInMemory(x)}) {
    for (const at::Tensor& right : {w, TurnedInMemory(w)}) {
      if (left.stride(1) != 1 && right.stride(1) != 1) continue;
      at::set_num_threads(1);
      const at::Tensor whole = at::empty({530, 300}), threads = at::empty({530, 300}), parts = at::empty({530, 300});
      ASSERT_TRUE(MultiplyByBlocks(left, right, {}, whole));
      at::set_num_threads(3);
      ASSERT_TRUE(MultiplyByBlocks(left, right, {}, threads));
      for (const auto& [first, rows] : std::vector<std::pair<int64_t, int64_t>>{{0, 16}, {16, 45}, {61, 469}}) {
        for (const auto& [column, columns] : std::vector<std::pair<int64_t, int64_t>>{{0, 19}, {19, 64}, {83, 217}}) {
          ASSERT_TRUE(MultiplyByBlocks(left.narrow(0, first, rows), right.narrow(1, column, columns), {},
                                       parts.narrow(0, first, rows).narrow(1, column, columns)));
        }
      }
      EXPECT_TRUE(by_onednn ? threads.equal(whole) : threads.allclose(whole, 1e-3, 1e-4));
      EXPECT_TRUE(by_onednn ? parts.equal(whole) : parts.allclose(whole, 1e-3, 1e-4));
    }
  }
}

TEST_F(BlockedGemm, LeavesTheRestToOthers) {
  const at::Tensor x = Floats(64, 64, 1), w = Floats(64, 64, 2), y = at::full({64, 64}, 7.0);
  EXPECT_FALSE(MultiplyByBlocks(x.to(at::kDouble), w.to(at::kDouble), {}, y.to(at::kDouble)));
  EXPECT_FALSE(MultiplyByBlocks(x.to(at::kBFloat16), w.to(at::kBFloat16), {}, y));
  EXPECT_FALSE(MultiplyByBlocks(x.t(), w.t(), {}, y)) << "both transposed";
  EXPECT_FALSE(MultiplyByBlocks(Floats(64, 128, 3).slice(1, 0, 128, 2).slice(0, 0, 64), w, {}, y)) << "no unit stride";
  EXPECT_FALSE(MultiplyByBlocks(x, w, {}, y.t()));
  EXPECT_FALSE(MultiplyByBlocks(x.narrow(0, 0, 1), w, {}, y.narrow(0, 0, 1))) << "one row";
  EXPECT_TRUE(y.eq(7).all().item<bool>());
  EXPECT_THROW(MultiplyByBlocks(x, w.narrow(0, 0, 63), {}, y), c10::Error);
}

// All operations of Gemms, whether blocks take them or not.
TEST_F(BlockedGemm, ServesGemms) {
  const Gemms gemms(Bf16Gemms::kNative, Fp32Gemms::kBlocks);
  for (const Sizes3& s : {Sizes3{100, 70, 90}, Sizes3{100, 8, 90}, Sizes3{1, 70, 90}, Sizes3{0, 70, 90}}) {
    const at::Tensor x = Floats(s.m, s.k, 1), w = Floats(s.k, s.n, 2), bias = Floats(1, s.n, 3).view({-1});
    const at::Tensor sum = Floats(s.m, s.n, 4), y = at::empty({s.m, s.n});
    gemms.Compute(x, w, y);
    ExpectProduct(y, x, w, at::full({1}, 0.0));
    gemms.ComputeWithBias(x, w, bias, y);
    ExpectProduct(y, x, w, bias);
    y.copy_(sum);
    gemms.AddTo(y, x, w);
    ExpectProduct(y, x, w, sum);
    y.copy_(sum);
    gemms.AddTo(y, x, w, -2);
    ExpectProduct(y, x.mul(-2), w, sum);
  }
}

TEST(Fp32Gemms, GoByTheCpuUnlessACodePathIsAskedFor) {
  using enum InstructionSet;
  const auto chosen = [](InstructionSet usable, bool intel, const char* cbwr, bool onednn = true) {
    return ChooseFp32Gemms({.cpu = kAmxBf16, .usable = usable, .limited_by = "", .intel = intel}, onednn, cbwr).gemms;
  };
  for (const char* own : {"", "AUTO", "auto,strict", "AVX512"}) {
    EXPECT_EQ(chosen(kAvx512, false, own), Fp32Gemms::kBlocks) << own;
    EXPECT_EQ(chosen(kAvx512Bf16, false, own), Fp32Gemms::kBlocks) << own;
    EXPECT_EQ(chosen(kAmxBf16, true, own), Fp32Gemms::kMkl) << own;
    EXPECT_EQ(chosen(kAvx2, false, own), Fp32Gemms::kMkl) << own;
    EXPECT_EQ(chosen(kAvx512, false, own, /*onednn=*/false), Fp32Gemms::kMkl) << own;
  }
  for (const char* shared : {"AVX2", "AVX2,STRICT", "COMPATIBLE", "SSE4_2"}) {
    EXPECT_EQ(chosen(kAvx512Bf16, false, shared), Fp32Gemms::kMkl) << shared;
  }
}

TEST(Fp32Gemms, TheLogSaysWhy) {
  const UsableInstructions zen4{.cpu = InstructionSet::kAvx512Bf16, .usable = InstructionSet::kAvx512Bf16};
  EXPECT_EQ(ChooseFp32Gemms(zen4, true, "AUTO").log, "fp32 GEMMs: in blocks by oneDNN (AVX-512 BF16, not Intel's)");
  EXPECT_EQ(ChooseFp32Gemms(zen4, true, "AVX2").log, "fp32 GEMMs: by MKL (MKL_CBWR=AVX2)");
  const UsableInstructions limited{
      .cpu = InstructionSet::kAvx512, .usable = InstructionSet::kAvx2, .limited_by = "ONEDNN_MAX_CPU_ISA=AVX2"};
  EXPECT_EQ(ChooseFp32Gemms(limited, true, "").log, "fp32 GEMMs: by MKL (ONEDNN_MAX_CPU_ISA=AVX2)");
}

}  // namespace
}  // namespace muster::units
