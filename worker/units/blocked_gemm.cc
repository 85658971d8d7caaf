#include "worker/units/blocked_gemm.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <cstdint>
#include <optional>

// In LibTorch (fbgemm/Utils.h, whose headers are not among those that we build with): to = the transpose of from.
namespace fbgemm {
template <typename T>
void transpose_simd(int64_t rows, int64_t columns, const T* from, int64_t from_stride, T* to, int64_t to_stride);
}  // namespace fbgemm

namespace muster::units {
namespace {

// The most rows and columns of a tile of y, by which operand is transposed. A panel, which is what is copied of that
// one, is kPanel x kInner, and each of its elements is multiplied with all columns or rows of the tile. A core's
// second-level cache holds a panel and kInner columns of x or rows of w.
constexpr int64_t kPanel = 64, kInner = 512;
constexpr int64_t kRows = 256, kColumns = 128, kColumnsOfTurned = 512;
// A kernel is compiled for each size and kept, by each thread. So that there are few however many numbers of rows
// occur, one computes a multiple of so many rows, or fewer.
constexpr int64_t kRowStep = 32;
// Below, calls of the kernel cost more than what they gain.
constexpr int64_t kLeast = 16;
constexpr int64_t kFloatsPerLine = 16;

// Of fp32 with unit stride within a row or, `turned`, within a column.
struct Operand {
  const float* data;
  int64_t stride;
  bool turned;

  const float* At(int64_t row, int64_t column) const {
    return turned ? data + column * stride + row : data + row * stride + column;
  }
};

std::optional<Operand> OperandOf(const at::Tensor& t) {
  if (t.stride(1) == 1 && t.stride(0) >= t.size(1)) return Operand{t.const_data_ptr<float>(), t.stride(0), false};
  if (t.stride(0) == 1 && t.stride(1) >= t.size(0)) return Operand{t.const_data_ptr<float>(), t.stride(1), true};
  return std::nullopt;
}

struct Part {
  int64_t first, size;
};

// Part i of `total` in as few parts of at most `most` as there must be, about equally large.
Part PartOf(int64_t total, int64_t most, int64_t step, int64_t i) {
  const int64_t parts = (total + most - 1) / most;
  const int64_t size = std::min(most, ((total + parts - 1) / parts + step - 1) / step * step), first = i * size;
  return {first, std::clamp<int64_t>(total - first, 0, size)};
}

int64_t Parts(int64_t total, int64_t most) { return (total + most - 1) / most; }

class Product {
 public:
  Product(const Operand& x, const Operand& w, int64_t k, float* y, int64_t y_stride, bool adds)
      : x_(x), w_(w), k_(k), y_(y), y_stride_(y_stride), adds_(adds) {}

  void Tile(Part rows, Part columns) const {
    if (rows.size == 0 || columns.size == 0) return;
    alignas(64) float panel[kPanel * kInner];
    for (int64_t p = 0; p < k_; p += kInner) {
      const int64_t inner = std::min(kInner, k_ - p);
      Operand x{x_.At(rows.first, p), x_.stride, false}, w{w_.At(p, columns.first), w_.stride, false};
      if (x_.turned) {
        Fetch(x.data, x.stride, inner, rows.size);
        fbgemm::transpose_simd<float>(inner, rows.size, x.data, x.stride, panel, inner);
        x = {panel, inner, false};
      } else if (w_.turned) {
        fbgemm::transpose_simd<float>(columns.size, inner, w.data, w.stride, panel, columns.size);
        w = {panel, columns.size, false};
      }
      // In pieces of y that are fetched before they are added to.
      const int64_t step = x_.turned ? kPanel : columns.size;
      for (int64_t j = 0; j < columns.size; j += step) {
        Piece(rows.first, columns.first + j, rows.size, std::min(step, columns.size - j), inner, x, w, p > 0);
        w.data += step;
      }
    }
  }

 private:
  void Piece(int64_t row, int64_t column, int64_t rows, int64_t columns, int64_t inner, const Operand& x,
             const Operand& w, bool begun) const {
    float* const y = y_ + row * y_stride_ + column;
    if (adds_ && !begun) Fetch(y, y_stride_, rows, columns);
    for (int64_t i = 0, n = 0; i < rows; i += n) {
      n = rows - i < kRowStep ? rows - i : (rows - i) / kRowStep * kRowStep;
      at::native::cpublas::brgemm(n, columns, inner, x.stride, w.stride, y_stride_, adds_ || begun,
                                  x.data + i * x.stride, w.data, y + i * y_stride_);
    }
  }

  // Into the second-level cache, many lines at a time. A transposed operand is read in columns, and the kernel reads y
  // only when its sums are complete: both would wait for few lines at a time.
  static void Fetch(const float* from, int64_t stride, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; j += kFloatsPerLine) __builtin_prefetch(from + i * stride + j, 0, 2);
    }
  }

  const Operand x_, w_;
  const int64_t k_;
  float* const y_;
  const int64_t y_stride_;
  const bool adds_;
};

}  // namespace

bool MultiplyByBlocks(const at::Tensor& x, const at::Tensor& w, const at::Tensor& begin, const at::Tensor& y) {
  for (const at::Tensor& t : {x, w, y}) {
    if (!t.is_cpu() || t.scalar_type() != at::kFloat || t.dim() != 2) return false;
  }
  const int64_t m = x.size(0), k = x.size(1), n = w.size(1);
  TORCH_CHECK(w.size(0) == k && y.size(0) == m && y.size(1) == n, "a GEMM of [", m, ", ", k, "] and [", w.size(0), ", ",
              n, "] into [", y.size(0), ", ", y.size(1), "]");
  if (std::min({m, k, n}) < kLeast) return false;
  const std::optional<Operand> left = OperandOf(x), right = OperandOf(w), to = OperandOf(y);
  if (!left || !right || !to || to->turned || (left->turned && right->turned)) return false;

  if (begin.defined() && !begin.is_same(y)) y.copy_(begin.expand_as(y));
  const int64_t most_rows = left->turned ? kPanel : kRows;
  const int64_t most_columns = left->turned ? kColumnsOfTurned : right->turned ? kPanel : kColumns;
  const int64_t row_parts = Parts(m, most_rows), column_parts = Parts(n, most_columns);
  const Product product(*left, *right, k, y.mutable_data_ptr<float>(), to->stride, begin.defined());
  at::parallel_for(0, row_parts * column_parts, 1, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      product.Tile(PartOf(m, most_rows, kRowStep, i % row_parts),
                   PartOf(n, most_columns, kFloatsPerLine, i / row_parts));
    }
  });
  return true;
}

}  // namespace muster::units
