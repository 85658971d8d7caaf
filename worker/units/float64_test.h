// What tests need that compare kernels with LibTorch's operators and autograd in float64.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace muster::units {

// Normally distributed, and rounded to `type`.
inline at::Tensor NormalNumbers(at::IntArrayRef shape, at::ScalarType type, int seed, double scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, scale);
  const at::Tensor t = at::empty(shape, at::kDouble);
  std::generate_n(t.mutable_data_ptr<double>(), t.numel(), [&] { return normal(random); });
  return t.to(type);
}

// A copy in float64 for which autograd finds the gradient.
inline at::Tensor Leaf(const at::Tensor& t) {
  return t.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).requires_grad_(true);
}

// Sums may be off by their rounding, relative to the largest number; bf16 and fp16 are rounded to once, at the end.
inline void ExpectFloat64(const at::Tensor& out, const at::Tensor& right, const char* what) {
  const at::ScalarType type = out.scalar_type();
  ASSERT_EQ(out.sizes(), right.sizes()) << what;
  const at::Tensor size = right.detach().abs();
  const double largest = size.max().item<double>(), sum = type == at::kDouble ? 1e-13 : 5e-6;
  const double once = type == at::kBFloat16 ? 1.01 / 256 : type == at::kHalf ? 1.01 / 2048 : 0;
  const at::Tensor allowed = size * once + sum * largest;
  EXPECT_GT(largest, 0) << what;
  EXPECT_LE(((out.to(at::kDouble) - right.detach()).abs() / allowed).max().item<double>(), 1) << what;
}

}  // namespace muster::units
