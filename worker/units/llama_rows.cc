#include "worker/units/llama_rows.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "worker/units/cuda/device_rows.h"
#include "worker/units/row_shares.h"
#include "worker/units/vector_math.h"

namespace muster::units {
namespace {

// T is the wide dtype, N the narrow one, X either.
template <typename T, typename X>
MUSTER_INLINE T RmsRstd(const X* x, int64_t width, T epsilon) {
  T square = 0;
#pragma omp simd reduction(+ : square)
  for (int64_t i = 0; i < width; ++i) square += Wide(x[i]) * Wide(x[i]);
  return T(1) / std::sqrt(square / static_cast<T>(width) + epsilon);
}

template <typename T, typename N, typename X>
MUSTER_INLINE void RmsRow(const X* x, T rstd, const N* weight, int64_t width, N* out) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) Put(Wide(x[i]) * rstd * Wide(weight[i]), out[i]);
}

// Adds a row's part of the gradient of the weight. Returns the mean of x_hat times its gradient, which the gradient of
// x needs.
template <typename T, typename N, typename X>
MUSTER_INLINE T RmsRowMean(const N* d, const X* x, T rstd, const N* weight, int64_t width, T* d_weight) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) {
    const T product = Wide(d[i]) * (Wide(x[i]) * rstd);
    sum += product * Wide(weight[i]);
    d_weight[i] += product;
  }
  return sum / static_cast<T>(width);
}

// The gradient of one x, given RmsRowMean.
template <typename T, typename N, typename X>
MUSTER_INLINE T RmsSlope(N d, X x, T rstd, N weight, T mean) {
  return rstd * (Wide(d) * Wide(weight) - Wide(x) * rstd * mean);
}

template <typename T, typename N>
MUSTER_INLINE void PlainAddRow(const T* x, const N* gemm, int64_t width, T* out) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) out[i] = x[i] + Wide(gemm[i]);
}

// Loops over rows. Their callees are inlined, so that they are compiled for the same vector unit.
template <typename T, typename N>
MUSTER_VECTOR void RmsNormRows(const T* x, const N* w, T epsilon, int64_t rows, int64_t n, N* out, T* st) {
  for (int64_t r = 0; r < rows; ++r) {
    st[r] = RmsRstd(x + r * n, n, epsilon);
    RmsRow(x + r * n, st[r], w, n, out + r * n);
  }
}

template <typename T, typename N>
MUSTER_VECTOR void AddRmsNormRows(const T* x, const N* gemm, const N* w, T epsilon, int64_t rows, int64_t n, T* sum,
                                  N* out, T* st) {
  for (int64_t r = 0; r < rows; ++r) {
    PlainAddRow(x + r * n, gemm + r * n, n, sum + r * n);
    st[r] = RmsRstd(sum + r * n, n, epsilon);
    RmsRow(sum + r * n, st[r], w, n, out + r * n);
  }
}

template <typename T, typename N>
MUSTER_VECTOR void RmsNormAgainRows(const T* x, const T* st, const N* w, int64_t rows, int64_t n, N* out) {
  for (int64_t r = 0; r < rows; ++r) RmsRow(x + r * n, st[r], w, n, out + r * n);
}

template <typename T, typename N>
MUSTER_VECTOR void RmsNormBackwardRows(const N* d, const T* x, const T* st, const N* w, int64_t rows, int64_t n, T* dx,
                                       T* d_weight) {
  for (int64_t r = 0; r < rows; ++r) {
    const N* const dr = d + r * n;
    const T* const xr = x + r * n;
    T* const to = dx + r * n;
    const T rstd = st[r], mean = RmsRowMean(dr, xr, rstd, w, n, d_weight);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] += RmsSlope(dr[i], xr[i], rstd, w[i], mean);
  }
}

template <typename T, typename N>
MUSTER_VECTOR void AddRows(const T* x, const N* gemm, int64_t rows, int64_t n, T* out) {
  for (int64_t r = 0; r < rows; ++r) PlainAddRow(x + r * n, gemm + r * n, n, out + r * n);
}

template <typename T, typename N>
MUSTER_VECTOR void SwiGluRows(const N* gate_up, int64_t rows, int64_t inner, N* out) {
  for (int64_t r = 0; r < rows; ++r) {
    const N *const gate = gate_up + 2 * r * inner, *const up = gate + inner;
    N* const to = out + r * inner;
#pragma omp simd
    for (int64_t i = 0; i < inner; ++i) {
      const T g = Wide(gate[i]);
      Put(g / (1 + Exp(-g)) * Wide(up[i]), to[i]);
    }
  }
}

template <typename T, typename N>
MUSTER_VECTOR void SwiGluBackwardRows(const N* gate_up, const N* d, int64_t rows, int64_t inner, N* out, N* d_gate_up) {
  for (int64_t r = 0; r < rows; ++r) {
    const N *const gate = gate_up + 2 * r * inner, *const up = gate + inner, *const dr = d + r * inner;
    N *const to = out + r * inner, *const d_gate = d_gate_up + 2 * r * inner, *const d_up = d_gate + inner;
#pragma omp simd
    for (int64_t i = 0; i < inner; ++i) {
      const T g = Wide(gate[i]), u = Wide(up[i]), di = Wide(dr[i]);
      const T s = 1 / (1 + Exp(-g)), silu = g * s;
      Put(silu * u, to[i]);
      Put(di * u * (s + silu * (1 - s)), d_gate[i]);
      Put(di * silu, d_up[i]);
    }
  }
}

// Matrices of heads: [rows, heads, head], rows `stride` apart.
template <typename N>
struct Heads {
  N* data;
  int64_t stride, heads, head;

  MUSTER_INLINE N* At(int64_t row, int64_t h) const { return data + row * stride + h * head; }
};

template <typename T, typename N>
MUSTER_VECTOR void RopeRows(Heads<N> x, const T* cosine, const T* sine, int64_t tokens, int64_t position, T direction,
                            int64_t first, int64_t rows) {
  const int64_t half = x.head / 2;
  for (int64_t r = first; r < first + rows; ++r) {
    const int64_t angles = (position + r % tokens) * half;
    const T *const c = cosine + angles, *const s = sine + angles;
    for (int64_t h = 0; h < x.heads; ++h) {
      N *const a = x.At(r, h), *const b = a + half;
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const T x1 = Wide(a[i]), x2 = Wide(b[i]), turn = s[i] * direction;
        Put(x1 * c[i] - x2 * turn, a[i]);
        Put(x2 * c[i] + x1 * turn, b[i]);
      }
    }
  }
}

// Items are all rows' heads, one row after the other.
template <typename T, typename N>
MUSTER_VECTOR void HeadNormItems(Heads<N> x, const N* w, T epsilon, int64_t first, int64_t items, Heads<N> out, T* st) {
  for (int64_t k = first, r = k / x.heads, h = k % x.heads; k < first + items; ++k) {
    st[k] = RmsRstd(x.At(r, h), x.head, epsilon);
    RmsRow(x.At(r, h), st[k], w, x.head, out.At(r, h));
    if (++h == x.heads) h = 0, ++r;
  }
}

template <typename T, typename N>
MUSTER_VECTOR void HeadNormBackwardItems(Heads<N> d, Heads<N> x, const T* st, const N* w, int64_t first, int64_t items,
                                         T* d_weight) {
  for (int64_t k = first, r = k / x.heads, h = k % x.heads; k < first + items; ++k) {
    N* const dk = d.At(r, h);
    const N* const xk = x.At(r, h);
    const T rstd = st[k], mean = RmsRowMean(dk, xk, rstd, w, x.head, d_weight);
#pragma omp simd
    for (int64_t i = 0; i < x.head; ++i) Put(RmsSlope(dk[i], xk[i], rstd, w[i], mean), dk[i]);
    if (++h == x.heads) h = 0, ++r;
  }
}

template <typename N>
Heads<N> InHeads(const at::Tensor& t) {
  TORCH_CHECK(t.is_cpu() && t.dim() == 3 && (t.size(2) <= 1 || t.stride(2) == 1) &&
                  (t.size(1) <= 1 || t.stride(1) == t.size(2)),
              "a view of heads is [rows, heads, head] on a CPU, with heads side by side");
  return {t.mutable_data_ptr<N>(), t.stride(0), t.size(1), t.size(2)};
}

}  // namespace

void RmsNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon, const at::Tensor& out,
             const at::Tensor& statistics, RowCode code) {
  if (ByPrograms(x, code)) return device::RmsNorm(x, weight, epsilon, out, statistics);
  const int64_t n = x.size(1);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    const T* from = In<T>(x);
    const N* w = In<N>(weight);
    N* to = In<N>(out);
    T* st = In<T>(statistics);
    EachShare(x.size(0), n, [&](int64_t r, int64_t rows) {
      RmsNormRows(from + r * n, w, static_cast<T>(epsilon), rows, n, to + r * n, st + r);
    });
  });
}

void AddAndRmsNorm(const at::Tensor& x, const at::Tensor& gemm, const at::Tensor& weight, double epsilon,
                   const at::Tensor& sum, const at::Tensor& out, const at::Tensor& statistics, RowCode code) {
  if (ByPrograms(x, code)) return device::AddAndRmsNorm(x, gemm, weight, epsilon, sum, out, statistics);
  const int64_t n = x.size(1);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    const T* from = In<T>(x);
    const N *p = In<N>(gemm), *w = In<N>(weight);
    T *both = In<T>(sum), *st = In<T>(statistics);
    N* to = In<N>(out);
    EachShare(x.size(0), n, [&](int64_t r, int64_t rows) {
      AddRmsNormRows(from + r * n, p + r * n, w, static_cast<T>(epsilon), rows, n, both + r * n, to + r * n, st + r);
    });
  });
}

void RmsNormAgain(const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight, const at::Tensor& out,
                  RowCode code) {
  if (ByPrograms(x, code)) return device::RmsNormAgain(x, statistics, weight, out);
  const int64_t n = x.size(1);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    const T *from = In<T>(x), *st = In<T>(statistics);
    const N* w = In<N>(weight);
    N* to = In<N>(out);
    EachShare(x.size(0), n,
              [&](int64_t r, int64_t rows) { RmsNormAgainRows(from + r * n, st + r, w, rows, n, to + r * n); });
  });
}

void RmsNormBackward(const at::Tensor& d_out, const at::Tensor& x, const at::Tensor& statistics,
                     const at::Tensor& weight, const at::Tensor& d_x, const at::Tensor& d_weight, RowCode code) {
  if (ByPrograms(x, code)) return device::RmsNormBackward(d_out, x, statistics, weight, d_x, d_weight);
  const int64_t n = x.size(1);
  Dispatch(d_out, [&]<typename T, typename N>(T, N) {
    const N *d = In<N>(d_out), *w = In<N>(weight);
    const T *from = In<T>(x), *st = In<T>(statistics);
    T* to = In<T>(d_x);
    EachShareSumming<T>(x.size(0), n, {In<T>(d_weight)}, [&](int64_t r, int64_t rows, T* sums) {
      RmsNormBackwardRows(d + r * n, from + r * n, st + r, w, rows, n, to + r * n, sums);
    });
  });
}

void Add(const at::Tensor& x, const at::Tensor& gemm, const at::Tensor& out, RowCode code) {
  if (ByPrograms(x, code)) return device::Add(x, gemm, out);
  const int64_t n = x.size(1);
  Dispatch(gemm, [&]<typename T, typename N>(T, N) {
    const T* from = In<T>(x);
    const N* p = In<N>(gemm);
    T* to = In<T>(out);
    EachShare(x.size(0), n, [&](int64_t r, int64_t rows) { AddRows(from + r * n, p + r * n, rows, n, to + r * n); });
  });
}

void SwiGlu(const at::Tensor& gate_up, const at::Tensor& out, RowCode code) {
  const int64_t n = out.size(1);
  TORCH_CHECK(gate_up.size(1) == 2 * n, "SwiGLU halves its rows");
  if (ByPrograms(out, code)) return device::SwiGlu(gate_up, out);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    const N* in = In<N>(gate_up);
    N* to = In<N>(out);
    EachShare(out.size(0), n, [&](int64_t r, int64_t rows) { SwiGluRows<T>(in + 2 * r * n, rows, n, to + r * n); });
  });
}

void SwiGluBackward(const at::Tensor& gate_up, const at::Tensor& out, const at::Tensor& d, const at::Tensor& d_gate_up,
                    RowCode code) {
  const int64_t n = out.size(1);
  TORCH_CHECK(gate_up.size(1) == 2 * n, "SwiGLU halves its rows");
  if (ByPrograms(out, code)) return device::SwiGluBackward(gate_up, out, d, d_gate_up);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    const N *in = In<N>(gate_up), *from = In<N>(d);
    N *to = In<N>(out), *gradient = In<N>(d_gate_up);
    EachShare(out.size(0), n, [&](int64_t r, int64_t rows) {
      SwiGluBackwardRows<T>(in + 2 * r * n, from + r * n, rows, n, to + r * n, gradient + 2 * r * n);
    });
  });
}

void Rope(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, int64_t tokens, int64_t position,
          bool back, RowCode code) {
  TORCH_CHECK(x.size(2) % 2 == 0 && cosine.size(1) == x.size(2) / 2 && sine.sizes() == cosine.sizes(),
              "rotary positions take tables [context, head / 2]");
  TORCH_CHECK(position >= 0 && position + std::min(tokens, x.size(0)) <= cosine.size(0), "token ",
              position + tokens - 1, " lies beyond the tables of ", cosine.size(0), " rotary positions");
  if (ByPrograms(x, code)) return device::Rope(x, cosine, sine, tokens, position, back);
  Dispatch(x, [&]<typename T, typename N>(T, N) {
    const Heads<N> in = InHeads<N>(x);
    const T *c = In<T>(cosine), *s = In<T>(sine);
    EachShare(x.size(0), in.heads * in.head, [&](int64_t r, int64_t rows) {
      RopeRows(in, c, s, tokens, position, static_cast<T>(back ? -1 : 1), r, rows);
    });
  });
}

// Each head is a row of its own to the threads.
void HeadNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon, const at::Tensor& out,
              const at::Tensor& statistics, RowCode code) {
  TORCH_CHECK(out.sizes() == x.sizes(), "heads are normalised into a view of their size");
  if (ByPrograms(x, code)) return device::HeadNorm(x, weight, epsilon, out, statistics);
  Dispatch(x, [&]<typename T, typename N>(T, N) {
    const Heads<N> from = InHeads<N>(x), to = InHeads<N>(out);
    const N* w = In<N>(weight);
    T* st = In<T>(statistics);
    EachShare(x.size(0) * from.heads, from.head,
              [&](int64_t k, int64_t items) { HeadNormItems(from, w, static_cast<T>(epsilon), k, items, to, st); });
  });
}

void HeadNormBackward(const at::Tensor& d, const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight,
                      const at::Tensor& d_weight, RowCode code) {
  TORCH_CHECK(d.sizes() == x.sizes(), "the gradient of heads has their size");
  if (ByPrograms(x, code)) return device::HeadNormBackward(d, x, statistics, weight, d_weight);
  Dispatch(x, [&]<typename T, typename N>(T, N) {
    const Heads<N> gradient = InHeads<N>(d), from = InHeads<N>(x);
    const T* st = In<T>(statistics);
    const N* w = In<N>(weight);
    EachShareSumming<T>(x.size(0) * from.heads, from.head, {In<T>(d_weight)}, [&](int64_t k, int64_t items, T* sums) {
      HeadNormBackwardItems(gradient, from, st, w, k, items, sums);
    });
  });
}

}  // namespace muster::units
