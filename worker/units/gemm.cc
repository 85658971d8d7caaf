#include "worker/units/gemm.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "models/inventory.h"
#include "worker/units/blocked_gemm.h"
#include "worker/units/row_kernels.h"

namespace muster::units {
namespace {

// The most rows and columns of a panel. At 1,024, an element is widened once per 2,048 floating-point operations, and
// three panels still fit a last-level cache.
constexpr int64_t kPanel = 1024;
static_assert(3 * kPanel * kPanel * sizeof(float) == models::kPanelBytes);

at::Tensor PanelOf(const at::Tensor& scratch, int64_t index, int64_t rows, int64_t columns) {
  return scratch.narrow(0, index * kPanel * kPanel, rows * columns).view({rows, columns});
}

// A block of `matrix`, widened into panel `index`. A block that is transposed in memory stays so.
at::Tensor Widened(const at::Tensor& matrix, int64_t row, int64_t rows, int64_t column, int64_t columns,
                   const at::Tensor& scratch, int64_t index) {
  const at::Tensor block = matrix.narrow(0, row, rows).narrow(1, column, columns);
  const bool transposed = block.stride(1) != 1 && block.stride(0) == 1;
  const at::Tensor panel = PanelOf(scratch, index, transposed ? columns : rows, transposed ? rows : columns);
  Widen(transposed ? block.t() : block, panel);
  return transposed ? panel.t() : panel;
}

// With unit stride along one dimension, as the kernels need it.
at::Tensor Dense(const at::Tensor& matrix) {
  return matrix.stride(0) == 1 || matrix.stride(1) == 1 ? matrix : matrix.contiguous();
}

// y = begin + alpha x w, all of one dtype, where `begin` is y itself or undefined for zero. `blocks`: as
// Gemms::blocks_.
void Multiply(bool blocks, const at::Tensor& x, const at::Tensor& w, const at::Tensor& begin, double alpha,
              at::Tensor& y) {
  if (blocks && alpha == 1 && MultiplyByBlocks(x, w, begin, y)) return;
  if (begin.defined()) {
    y.addmm_(x, w, /*beta=*/1, alpha);
  } else {
    at::mm_out(y, x, w);
  }
}

// done(first row, rows, first column, columns, block of x w in fp32). With `begin`, which is called likewise, the block
// begins with what that writes, and `alpha` x w is added to it. `blocks`: as Multiply.
template <typename F, typename B = std::nullptr_t>
void EachPanel(bool blocks, const at::Tensor& x_given, const at::Tensor& w_given, const F& done,
               const B& begin = nullptr, double alpha = 1) {
  constexpr bool adds = !std::is_same_v<B, std::nullptr_t>;
  const at::Tensor x = Dense(x_given), w = Dense(w_given);
  const int64_t m = x.size(0), k = x.size(1), n = w.size(1);
  TORCH_CHECK(w.size(0) == k, "a GEMM of [", m, ", ", k, "] and [", w.size(0), ", ", n, "]");
  // Always the same size: the allocator keeps one block for all GEMMs, and the plan counts it once.
  const at::Tensor scratch = at::empty({3 * kPanel * kPanel}, x.options().dtype(at::kFloat));
  for (int64_t i = 0; i < m; i += kPanel) {
    const int64_t rows = std::min(kPanel, m - i);
    at::Tensor left;
    for (int64_t j = 0; j < n; j += kPanel) {
      const int64_t columns = std::min(kPanel, n - j);
      at::Tensor block = PanelOf(scratch, 2, rows, columns);
      for (int64_t p = 0; p < k; p += kPanel) {
        const int64_t inner = std::min(kPanel, k - p);
        if (j == 0 || k > kPanel) left = Widened(x, i, rows, p, inner, scratch, 0);
        const at::Tensor right = Widened(w, p, inner, j, columns, scratch, 1);
        if constexpr (adds) {
          if (p == 0) begin(i, rows, j, columns, block);
        }
        Multiply(blocks, left, right, adds || p > 0 ? block : at::Tensor(), alpha, block);
      }
      done(i, rows, j, columns, block);
    }
  }
}

constexpr int64_t kAmxColumns = 32;  // of bf16 in a tile

// A left operand of LibTorch's GEMM: a copy if the kernel could read past the end of its rows (gemm.h).
at::Tensor Alone(const at::Tensor& x) {
  const bool apart = x.stride(1) == 1 && x.stride(0) > x.size(1) && x.size(1) % kAmxColumns != 0;
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 && apart ? x.contiguous() : x;
}

at::Tensor BlockOf(const at::Tensor& matrix, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  return matrix.narrow(0, row, rows).narrow(1, column, columns);
}

}  // namespace

void Gemms::Compute(const at::Tensor& x, const at::Tensor& w, at::Tensor y) const {
  if (!ThroughPanels(x) || x.numel() == 0) {
    Multiply(blocks_, Alone(x), w, /*begin=*/{}, /*alpha=*/1, y);
    return;
  }
  EachPanel(blocks_, x, w, [&](int64_t i, int64_t rows, int64_t j, int64_t columns, const at::Tensor& block) {
    Round(block, at::Tensor(), BlockOf(y, i, rows, j, columns));
  });
}

void Gemms::ComputeOfPadded(const at::Tensor& padded, const at::Tensor& w, at::Tensor y) const {
  const int64_t columns = w.size(0);
  const at::Tensor x = padded.narrow(1, 0, columns);
  if (!x.is_cpu() || x.scalar_type() != at::kBFloat16 || ThroughPanels(x)) return Compute(x, w, y);
  TORCH_CHECK(padded.size(1) % kAmxColumns == 0, "rows of ", padded.size(1), " bf16 columns end inside a tile");
  padded.narrow(1, columns, padded.size(1) - columns).zero_();
  at::mm_out(y, x, w);
}

void Gemms::ComputeWithBias(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, at::Tensor y) const {
  if (!ThroughPanels(x) || x.numel() == 0) {
    if (blocks_ && MultiplyByBlocks(x, w, bias, y)) return;
    at::addmm_out(y, bias, Alone(x), w);
    return;
  }
  EachPanel(blocks_, x, w, [&](int64_t i, int64_t rows, int64_t j, int64_t columns, const at::Tensor& block) {
    Round(block, bias.narrow(0, j, columns), BlockOf(y, i, rows, j, columns));
  });
}

void Gemms::Combine(const at::Tensor& sum, double beta, const at::Tensor& x, const at::Tensor& w, double alpha,
                    at::Tensor y) const {
  if (!ThroughPanels(x) || x.numel() == 0) {
    at::addmm_out(y, sum, Alone(x), w, beta, alpha);
    return;
  }
  EachPanel(
      blocks_, x, w,
      [&](int64_t i, int64_t rows, int64_t j, int64_t columns, const at::Tensor& block) {
        Round(block, at::Tensor(), BlockOf(y, i, rows, j, columns));
      },
      [&](int64_t i, int64_t rows, int64_t j, int64_t columns, const at::Tensor& block) {
        Widen(BlockOf(sum, i, rows, j, columns), block);
        block.mul_(beta);
      },
      alpha);
}

void Gemms::AddTo(at::Tensor sum, const at::Tensor& x, const at::Tensor& w, double alpha) const {
  if (sum.scalar_type() == x.scalar_type()) {
    Multiply(blocks_, Alone(x), w, sum, alpha, sum);
  } else if (!x.is_cpu()) {
    at::addmm_out(sum, sum, x, w, sum.scalar_type(), /*beta=*/1, alpha);  // which LibTorch has for GPUs only
  } else if (!ThroughPanels(x) || x.numel() == 0) {
    AddRounded(at::mm(Alone(x), w), alpha, sum);
  } else {
    EachPanel(blocks_, x, w, [&](int64_t i, int64_t rows, int64_t j, int64_t columns, const at::Tensor& block) {
      const at::Tensor to = BlockOf(sum, i, rows, j, columns);
      if (x.scalar_type() == at::kHalf) {
        to.add_(block, alpha);
      } else {
        AddRounded(block, alpha, to);
      }
    });
  }
}

at::Tensor Gemms::Differentiable(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) const {
  if (!ThroughPanels(x)) return bias.defined() ? at::addmm(bias, Alone(x), w) : at::mm(Alone(x), w);
  // The derivative of a cast to fp32 rounds the gradient, as a native GEMM does.
  const at::Tensor wide_x = x.to(at::kFloat), wide_w = w.to(at::kFloat);
  const at::Tensor y = bias.defined() ? at::addmm(bias.to(at::kFloat), wide_x, wide_w) : at::mm(wide_x, wide_w);
  return y.to(x.scalar_type());
}

}  // namespace muster::units
