// The row operations of a Llama block, by the conventions of row_kernels.h: the same narrow and wide dtypes, arithmetic
// in the wide one, gradients of vectors added to (in the wide dtype), and the same choice of code.
//
//   RmsNorm(x, weight, 1e-5, normed, statistics);
//
// Tensors are contiguous unless they are called a view. A view [rows, heads, head] has heads that lie side by side, and
// rows that may be further apart, so it can be a slice of a wider projection.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/units/row_kernels.h"

namespace muster::units {

// out = x rstd weight, rstd = 1 / sqrt(mean(x^2) + epsilon) (Zhang and Sennrich 2019). x wide, out narrow;
// statistics [rows], wide, become rstd.
void RmsNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon, const at::Tensor& out,
             const at::Tensor& statistics, RowCode code = RowCode::kVector);

// sum = x + gemm, then out = RmsNorm(sum). x and sum wide, the others narrow; sum may be gemm.
void AddAndRmsNorm(const at::Tensor& x, const at::Tensor& gemm, const at::Tensor& weight, double epsilon,
                   const at::Tensor& sum, const at::Tensor& out, const at::Tensor& statistics,
                   RowCode code = RowCode::kVector);

// Recomputes RmsNorm from its statistics.
void RmsNormAgain(const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight, const at::Tensor& out,
                  RowCode code = RowCode::kVector);

// d_x += the gradient of RmsNorm's input; d_weight += that of its weight. d_out narrow, d_x wide.
void RmsNormBackward(const at::Tensor& d_out, const at::Tensor& x, const at::Tensor& statistics,
                     const at::Tensor& weight, const at::Tensor& d_x, const at::Tensor& d_weight,
                     RowCode code = RowCode::kVector);

// out = x + gemm. x and out wide, gemm narrow; out may be x or gemm.
void Add(const at::Tensor& x, const at::Tensor& gemm, const at::Tensor& out, RowCode code = RowCode::kVector);

// out = silu(gate) up (Shazeer 2020), with silu(x) = x sigmoid(x). gate_up [rows, 2 inner] has the gate in its first
// `inner` columns; out [rows, inner]. Narrow.
void SwiGlu(const at::Tensor& gate_up, const at::Tensor& out, RowCode code = RowCode::kVector);

// Recomputes out; d_gate_up becomes the gradient of gate_up, from d, that of out. d_gate_up may be gate_up.
void SwiGluBackward(const at::Tensor& gate_up, const at::Tensor& out, const at::Tensor& d, const at::Tensor& d_gate_up,
                    RowCode code = RowCode::kVector);

// Rotary positions (Su et al. 2021) in place. x: narrow view; row r has position p = `position` + r % tokens. Turns
// the pairs (i, i + head / 2) of each head by the angle whose cosine and sine stand in row p and column i of the wide
// tables [context, head / 2], as Hugging Face's rotate_half. `back` turns by the negative angle, which is the gradient.
void Rope(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, int64_t tokens, int64_t position,
          bool back, RowCode code = RowCode::kVector);

// RmsNorm of each head, with one weight [head] for all. x and out: narrow views; out may be x. statistics
// [rows * heads], wide, become rstd.
void HeadNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon, const at::Tensor& out,
              const at::Tensor& statistics, RowCode code = RowCode::kVector);

// d, a narrow view, turns from the gradient of HeadNorm's result into that of its input x; d_weight += that of its
// weight.
void HeadNormBackward(const at::Tensor& d, const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight,
                      const at::Tensor& d_weight, RowCode code = RowCode::kVector);

}  // namespace muster::units
