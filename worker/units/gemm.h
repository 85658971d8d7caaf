// The GEMMs of units: the only place that multiplies bf16 matrices on a CPU, natively or through fp32 panels
// (bf16_gemms.h).
//
//   const Gemms gemms(ChooseBf16Gemms().gemms);
//   gemms.Compute(x, weight, y);
//
// Through panels, blocks of the operands are widened into a scratch of models::kBf16PanelBytes, multiplied in fp32, and
// the result is rounded to bf16 once, where a native GEMM rounds. Both paths differ only in the order of summation:
// each element is within one bf16 ulp of the float64 product rounded to bf16, plus the fp32 rounding of summands that
// cancel.
//
// Matrices have two dimensions and are on one device; operands may be transposed views. Matrices that are not bf16 or
// not on a CPU go to LibTorch unchanged. Thread-safe for different outputs. Throws c10::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/units/bf16_gemms.h"

namespace muster::units {

class Gemms {
 public:
  explicit Gemms(Bf16Gemms bf16) : panels_(bf16 == Bf16Gemms::kPanels) {}

  // y = x w, all of one dtype. y has unit stride within a row.
  void Compute(const at::Tensor& x, const at::Tensor& w, at::Tensor y) const;

  // y = bias + x w, rounded once.
  void ComputeWithBias(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, at::Tensor y) const;

  // sum += alpha x w. With bf16 operands and an fp32 sum the product is rounded to bf16 before it is added on a CPU; a
  // GPU's GEMM adds in fp32.
  void AddTo(at::Tensor sum, const at::Tensor& x, const at::Tensor& w, double alpha = 1) const;

  // bias, unless it is undefined, + x w by operators that LibTorch's autograd differentiates; gradients are rounded
  // where native ones are.
  at::Tensor Differentiable(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) const;

  // Whether matrices of this dtype and device go through panels.
  bool ThroughPanels(const at::Tensor& t) const { return panels_ && t.is_cpu() && t.scalar_type() == at::kBFloat16; }

 private:
  bool panels_;
};

}  // namespace muster::units
