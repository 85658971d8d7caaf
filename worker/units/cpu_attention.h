// Causal scaled dot product attention on a CPU (Vaswani et al. 2017), forward and backward, by blocks of queries over
// their preceding keys. LibTorch's fused CPU operator repacks each small block and returns three gradients that must be
// concatenated; this one writes directly where the next GEMM reads.
//
// q, k and v lie beside each other: qkv [sequences, tokens, 3, heads, width / heads]. All tensors contiguous on the
// CPU, of one dtype, bf16, fp32 or float64; log_sums in fp32 for bf16, whose heads are computed in fp32 too. Work is
// split over LibTorch's threads by heads, so results do not depend on their number. Thread-safe for different outputs.
#pragma once

#include <ATen/core/Tensor.h>

namespace muster::units {

// out [sequences, tokens, width]; log_sums [sequences, heads, tokens] are kept for the backward.
void Attend(const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& log_sums);

// d_qkv becomes the gradient of qkv, from d_out, that of out.
void AttendBackward(const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& log_sums, const at::Tensor& d_out,
                    const at::Tensor& d_qkv);

}  // namespace muster::units
