// The GEMMs of units: the only place that multiplies bf16 and fp16 matrices on a CPU, natively or through fp32 panels
// (bf16_gemms.h). Those of fp16 always go through panels: few CPUs have instructions for them. fp32 matrices are
// multiplied by MKL or in blocks (fp32_gemms.h).
//
//   const Gemms gemms(ChooseBf16Gemms().gemms, ChooseFp32Gemms().gemms);
//   gemms.Compute(x, weight, y);
//
// Through panels, blocks of the operands are widened into a scratch of models::kPanelBytes, multiplied as fp32 matrices
// are, and the result is rounded once, where a native GEMM rounds. Both paths differ only in the order of summation:
// each element is within one bf16 ulp of the float64 product rounded to bf16, plus the fp32 rounding of summands that
// cancel.
//
// On CPUs with AMX, oneDNN reads each row of a bf16 left operand past its end, up to the next multiple of 32 columns,
// and multiplies what it finds there by zero (uxlfoundation/oneDNN issue 5717, pull request 5603). A NaN in memory that
// was never written then makes the whole row of the product NaN. So an operand with gaps between its rows is copied
// first, unless its width is a multiple of 32. ComputeOfPadded needs no copy.
//
// Matrices have two dimensions and are on one device; operands may be transposed views. Other matrices, and those
// that are not on a CPU, go to LibTorch as they are. Thread-safe for different outputs. Throws c10::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/units/bf16_gemms.h"
#include "worker/units/fp32_gemms.h"

namespace muster::units {

class Gemms {
 public:
  explicit Gemms(Bf16Gemms bf16, Fp32Gemms fp32 = Fp32Gemms::kMkl)
      : panels_(bf16 == Bf16Gemms::kPanels), blocks_(fp32 == Fp32Gemms::kBlocks) {}

  // y = x w, all of one dtype. y has unit stride within a row.
  void Compute(const at::Tensor& x, const at::Tensor& w, at::Tensor y) const;

  // y = x w, where x is the first columns of `padded`, as many as w has rows; the others become zero or stay as they
  // are. REQUIRES: `padded` is a multiple of 32 columns wide.
  void ComputeOfPadded(const at::Tensor& padded, const at::Tensor& w, at::Tensor y) const;

  // y = bias + x w, rounded once.
  void ComputeWithBias(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, at::Tensor y) const;

  // y = beta sum + alpha x w, all of one dtype, rounded once. y and sum have unit stride within a row; y is none of the
  // operands.
  void Combine(const at::Tensor& sum, double beta, const at::Tensor& x, const at::Tensor& w, double alpha,
               at::Tensor y) const;

  // sum += alpha x w. With bf16 operands and an fp32 sum the product is rounded to bf16 before it is added on a CPU; a
  // GPU's GEMM adds in fp32, and so do panels of fp16, whose range a long sum could leave.
  void AddTo(at::Tensor sum, const at::Tensor& x, const at::Tensor& w, double alpha = 1) const;

  // bias, unless it is undefined, + x w by operators that LibTorch's autograd differentiates; gradients are rounded
  // where native ones are.
  at::Tensor Differentiable(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) const;

  // Whether matrices of this dtype and device go through panels.
  bool ThroughPanels(const at::Tensor& t) const {
    return t.is_cpu() && ((panels_ && t.scalar_type() == at::kBFloat16) || t.scalar_type() == at::kHalf);
  }

 private:
  bool panels_;
  bool blocks_;  // of fp32
};

}  // namespace muster::units
