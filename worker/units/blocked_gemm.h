// fp32 GEMMs on a CPU in blocks, by oneDNN's kernel for one block (dnnl::ukernel::brgemm), which LibTorch exports.
//
// On AMD's CPUs with AVX-512 they are faster than MKL's, which copies both operands and reads the result once more
// before it adds to it: here an operand is copied only where it lies transposed in memory, a block at a time.
//
// Each element is summed over k in one order. So its bits depend neither on the number of threads, nor on how many rows
// and columns are computed together, nor on where matrices lie. Thread-safe for different outputs.
#pragma once

#include <ATen/core/Tensor.h>

namespace muster::units {

// Sets y = begin + x w and returns true. `begin` is y itself, which is added to, one row for all, or undefined for
// zero. Returns false, with y unchanged, where it has no code or gains nothing: other dtypes and devices, both operands
// transposed, an operand or y without unit stride, few rows or columns. REQUIRES: y shares no memory with the operands.
// Throws c10::Error if sizes do not fit.
bool MultiplyByBlocks(const at::Tensor& x, const at::Tensor& w, const at::Tensor& begin, const at::Tensor& y);

}  // namespace muster::units
