#include "worker/units/row_kernels.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "worker/units/cuda/device_rows.h"
#include "worker/units/row_shares.h"
#include "worker/units/vector_math.h"

namespace muster::units {
namespace {

constexpr double kGelu = 0.7978845608028654, kGeluCube = 0.044715;  // sqrt(2 / pi)

// T is the wide dtype, N the narrow one.
template <typename T>
MUSTER_INLINE void Statistics(const T* x, int64_t width, T* statistics) {
  T sum = 0, square = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) sum += x[i];
  const T mean = sum / static_cast<T>(width);
#pragma omp simd reduction(+ : square)
  for (int64_t i = 0; i < width; ++i) square += (x[i] - mean) * (x[i] - mean);
  statistics[0] = mean;
  statistics[1] = T(1) / std::sqrt(square / static_cast<T>(width) + static_cast<T>(kNormEpsilon));
}

template <typename T, typename N>
MUSTER_INLINE void Normalise(const T* x, const T* statistics, const N* weight, const N* bias, int64_t width, N* out) {
  const T mean = statistics[0], rstd = statistics[1];
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) Put((x[i] - mean) * rstd * Wide(weight[i]) + Wide(bias[i]), out[i]);
}

template <typename T, typename N>
MUSTER_INLINE void AddRow(const N* x, int64_t width, T* sum) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) sum[i] += Wide(x[i]);
}

template <typename T, typename N>
MUSTER_INLINE void AddGemmRow(const T* x, const N* gemm, const N* bias, int64_t width, T* out) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) out[i] = x[i] + (Wide(gemm[i]) + Wide(bias[i]));
}

template <typename T, typename N>
MUSTER_INLINE void NarrowRow(const T* x, int64_t width, N* out, T* sums) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    sums[i] += x[i];
    Put(x[i], out[i]);
  }
}

template <typename T, typename N>
MUSTER_INLINE void NormRowBackward(const N* d, const T* x, const T* statistics, const N* weight, int64_t width, T* dx,
                                   T* d_weight, T* d_bias) {
  const T mean = statistics[0], rstd = statistics[1];
  T sum = 0, gemm = 0;
#pragma omp simd reduction(+ : sum, gemm)
  for (int64_t i = 0; i < width; ++i) {
    const T hat = (x[i] - mean) * rstd, di = Wide(d[i]), dw = di * Wide(weight[i]);
    sum += dw;
    gemm += dw * hat;
    d_weight[i] += di * hat;
    d_bias[i] += di;
  }
  const T a = sum / static_cast<T>(width), b = gemm / static_cast<T>(width);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const T hat = (x[i] - mean) * rstd;
    dx[i] += rstd * (Wide(d[i]) * Wide(weight[i]) - a - hat * b);
  }
}

template <typename T, typename N>
MUSTER_INLINE void GeluRow(const N* x, const N* bias, int64_t width, N* out) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const T v = Wide(x[i]) + Wide(bias[i]);
    const T u = static_cast<T>(kGelu) * v * (1 + static_cast<T>(kGeluCube) * v * v);
    Put(v / (1 + Exp(-2 * u)), out[i]);
  }
}

template <typename T, typename N>
MUSTER_INLINE void GeluRowBackward(const N* x, const N* bias, int64_t width, N* out, N* d, T* d_bias) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const T v = Wide(x[i]) + Wide(bias[i]);
    const T cube = static_cast<T>(kGeluCube) * v * v, u = static_cast<T>(kGelu) * v * (1 + cube);
    const T s = 1 / (1 + Exp(-2 * u));
    const T slope = s + v * s * (1 - s) * (2 * static_cast<T>(kGelu)) * (1 + 3 * cube);
    const T dv = Wide(d[i]) * slope;
    Put(v * s, out[i]);
    Put(dv, d[i]);
    d_bias[i] += dv;
  }
}

template <typename T>
MUSTER_INLINE double CrossEntropyRow(T* x, int64_t width, int64_t target, T scale) {
  T top = x[0], sum = 0;
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < width; ++i) top = x[i] > top ? x[i] : top;
  const T picked = x[target] - top;
  if (scale == 0) {
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) sum += Exp(x[i] - top);
  } else {
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) {
      x[i] = Exp(x[i] - top);
      sum += x[i];
    }
    const T factor = scale / sum;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) x[i] *= factor;
    x[target] -= scale;
  }
  return std::log(static_cast<double>(sum)) - static_cast<double>(picked);
}

// Loops over rows. Their callees are inlined, so that they are compiled for the same vector unit.
template <typename T, typename N>
MUSTER_VECTOR void NormRows(const T* x, const N* w, const N* b, int64_t rows, int64_t n, N* out, T* st) {
  for (int64_t r = 0; r < rows; ++r) {
    Statistics(x + r * n, n, st + 2 * r);
    Normalise(x + r * n, st + 2 * r, w, b, n, out + r * n);
  }
}

template <typename T, typename N>
MUSTER_VECTOR void AddNormRows(const T* x, const N* gemm, const N* gemm_bias, const N* w, const N* b, int64_t rows,
                               int64_t n, T* sum, N* out, T* st) {
  for (int64_t r = 0; r < rows; ++r) {
    AddGemmRow(x + r * n, gemm + r * n, gemm_bias, n, sum + r * n);
    Statistics(sum + r * n, n, st + 2 * r);
    Normalise(sum + r * n, st + 2 * r, w, b, n, out + r * n);
  }
}

template <typename T, typename N>
MUSTER_VECTOR void NormAgainRows(const T* x, const T* st, const N* w, const N* b, int64_t rows, int64_t n, N* out) {
  for (int64_t r = 0; r < rows; ++r) Normalise(x + r * n, st + 2 * r, w, b, n, out + r * n);
}

template <typename T, typename N>
MUSTER_VECTOR void NormBackwardRows(const N* d, const T* x, const T* st, const N* w, int64_t rows, int64_t n, T* dx,
                                    T* d_weight, T* d_bias) {
  for (int64_t r = 0; r < rows; ++r) {
    NormRowBackward(d + r * n, x + r * n, st + 2 * r, w, n, dx + r * n, d_weight, d_bias);
  }
}

template <typename T, typename N>
MUSTER_VECTOR void GeluRows(const N* x, const N* b, int64_t rows, int64_t n, N* out) {
  for (int64_t r = 0; r < rows; ++r) GeluRow<T>(x + r * n, b, n, out + r * n);
}

template <typename T, typename N>
MUSTER_VECTOR void GeluBackwardRows(const N* x, const N* b, int64_t rows, int64_t n, N* out, N* d, T* d_bias) {
  for (int64_t r = 0; r < rows; ++r) GeluRowBackward(x + r * n, b, n, out + r * n, d + r * n, d_bias);
}

template <typename T, typename N>
MUSTER_VECTOR void AddGemmRows(const T* x, const N* gemm, const N* b, int64_t rows, int64_t n, T* out) {
  for (int64_t r = 0; r < rows; ++r) AddGemmRow(x + r * n, gemm + r * n, b, n, out + r * n);
}

template <typename T, typename N>
MUSTER_VECTOR void ColumnSumRows(const N* d, int64_t rows, int64_t n, T* sums) {
  for (int64_t r = 0; r < rows; ++r) AddRow(d + r * n, n, sums);
}

template <typename T, typename N>
MUSTER_VECTOR void NarrowRows(const T* d, int64_t rows, int64_t n, N* out, T* sums) {
  for (int64_t r = 0; r < rows; ++r) NarrowRow(d + r * n, n, out + r * n, sums);
}

template <typename N>
MUSTER_VECTOR void WidenMatrix(const N* from, int64_t stride, int64_t rows, int64_t n, float* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const N* const row = from + r * stride;
    float* const out = to + r * to_stride;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = Wide(row[i]);
  }
}

template <typename N>
MUSTER_VECTOR void RoundMatrix(const float* from, int64_t stride, int64_t rows, int64_t n, N* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* const row = from + r * stride;
    N* const out = to + r * to_stride;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) Put(row[i], out[i]);
  }
}

template <typename N>
MUSTER_VECTOR void RoundMatrixWithBias(const float* from, int64_t stride, const N* bias, int64_t rows, int64_t n, N* to,
                                       int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* const row = from + r * stride;
    N* const out = to + r * to_stride;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) Put(row[i] + Wide(bias[i]), out[i]);
  }
}

template <typename T>
MUSTER_VECTOR void AddRoundedMatrix(const T* from, int64_t stride, int64_t rows, int64_t n, float alpha, float* to,
                                    int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* const row = from + r * stride;
    float* const out = to + r * to_stride;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      c10::BFloat16 rounded;
      Put(Wide(row[i]), rounded);
      out[i] += alpha * Wide(rounded);
    }
  }
}

// `wide` has room for a row where N is not T.
template <typename T, typename N>
MUSTER_VECTOR double CrossEntropyRows(N* x, int64_t stride, const int64_t* targets, int64_t rows, int64_t n, T scale,
                                      T* wide) {
  double loss = 0;
  for (int64_t r = 0; r < rows; ++r) {
    N* const row = x + r * stride;
    if constexpr (std::is_same_v<N, T>) {
      loss += CrossEntropyRow(row, n, targets[r], scale);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) wide[i] = Wide(row[i]);
      loss += CrossEntropyRow(wide, n, targets[r], scale);
      if (scale == 0) continue;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) Put(wide[i], row[i]);
    }
  }
  return loss;
}

// A matrix with whole rows.
template <typename T>
T* Rows(const at::Tensor& t) {
  TORCH_CHECK(t.is_cpu() && t.dim() == 2 && (t.size(1) <= 1 || t.stride(1) == 1), "row kernels take whole rows");
  return t.mutable_data_ptr<T>();
}

// body(zero) for the narrow dtype of `t`.
template <typename F>
void DispatchNarrow(const at::Tensor& t, const F& body) {
  if (t.scalar_type() == at::kHalf) return body(c10::Half{});
  TORCH_CHECK(t.scalar_type() == at::kBFloat16, "a matrix in bf16 or fp16, not ", t.scalar_type());
  body(c10::BFloat16{});
}

}  // namespace

at::ScalarType WideType(at::ScalarType narrow) {
  return narrow == at::kBFloat16 || narrow == at::kHalf ? at::kFloat : narrow;
}

void Norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out,
          const at::Tensor& statistics, RowCode code) {
  if (ByPrograms(x, code)) return device::Norm(x, weight, bias, out, statistics);
  const int64_t n = x.size(1);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    const T* from = In<T>(x);
    const N *w = In<N>(weight), *b = In<N>(bias);
    N* to = In<N>(out);
    T* st = In<T>(statistics);
    EachShare(x.size(0), n,
              [&](int64_t r, int64_t rows) { NormRows(from + r * n, w, b, rows, n, to + r * n, st + 2 * r); });
  });
}

void AddAndNorm(const at::Tensor& x, const at::Tensor& gemm, const at::Tensor& gemm_bias, const at::Tensor& weight,
                const at::Tensor& bias, const at::Tensor& sum, const at::Tensor& out, const at::Tensor& statistics,
                RowCode code) {
  if (ByPrograms(x, code)) return device::AddAndNorm(x, gemm, gemm_bias, weight, bias, sum, out, statistics);
  const int64_t n = x.size(1);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    const T* from = In<T>(x);
    const N *p = In<N>(gemm), *pb = In<N>(gemm_bias), *w = In<N>(weight), *b = In<N>(bias);
    T *both = In<T>(sum), *st = In<T>(statistics);
    N* to = In<N>(out);
    EachShare(x.size(0), n, [&](int64_t r, int64_t rows) {
      AddNormRows(from + r * n, p + r * n, pb, w, b, rows, n, both + r * n, to + r * n, st + 2 * r);
    });
  });
}

void NormAgain(const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight, const at::Tensor& bias,
               const at::Tensor& out, RowCode code) {
  if (ByPrograms(x, code)) return device::NormAgain(x, statistics, weight, bias, out);
  const int64_t n = x.size(1);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    const T *from = In<T>(x), *st = In<T>(statistics);
    const N *w = In<N>(weight), *b = In<N>(bias);
    N* to = In<N>(out);
    EachShare(x.size(0), n,
              [&](int64_t r, int64_t rows) { NormAgainRows(from + r * n, st + 2 * r, w, b, rows, n, to + r * n); });
  });
}

void NormBackward(const at::Tensor& d_out, const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight,
                  const at::Tensor& d_x, const at::Tensor& d_weight, const at::Tensor& d_bias, RowCode code) {
  if (ByPrograms(x, code)) return device::NormBackward(d_out, x, statistics, weight, d_x, d_weight, d_bias);
  const int64_t n = x.size(1);
  Dispatch(d_out, [&]<typename T, typename N>(T, N) {
    const N *d = In<N>(d_out), *w = In<N>(weight);
    const T *from = In<T>(x), *st = In<T>(statistics);
    T* to = In<T>(d_x);
    EachShareSumming<T>(x.size(0), n, {In<T>(d_weight), In<T>(d_bias)}, [&](int64_t r, int64_t rows, T* sums) {
      NormBackwardRows(d + r * n, from + r * n, st + 2 * r, w, rows, n, to + r * n, sums, sums + n);
    });
  });
}

void AddAndGelu(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& out, RowCode code) {
  if (ByPrograms(x, code)) return device::AddAndGelu(x, bias, out);
  const int64_t n = x.size(1);
  Dispatch(x, [&]<typename T, typename N>(T, N) {
    const N *in = In<N>(x), *b = In<N>(bias);
    N* to = In<N>(out);
    EachShare(x.size(0), n, [&](int64_t r, int64_t rows) { GeluRows<T>(in + r * n, b, rows, n, to + r * n); });
  });
}

void GeluBackward(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& out, const at::Tensor& d,
                  const at::Tensor& d_bias, RowCode code) {
  if (ByPrograms(x, code)) return device::GeluBackward(x, bias, out, d, d_bias);
  const int64_t n = x.size(1);
  Dispatch(x, [&]<typename T, typename N>(T, N) {
    const N *in = In<N>(x), *b = In<N>(bias);
    N *to = In<N>(out), *gradient = In<N>(d);
    EachShareSumming<T>(x.size(0), n, {In<T>(d_bias)}, [&](int64_t r, int64_t rows, T* sums) {
      GeluBackwardRows(in + r * n, b, rows, n, to + r * n, gradient + r * n, sums);
    });
  });
}

void AddGemm(const at::Tensor& x, const at::Tensor& gemm, const at::Tensor& bias, const at::Tensor& out, RowCode code) {
  if (ByPrograms(x, code)) return device::AddGemm(x, gemm, bias, out);
  const int64_t n = x.size(1);
  Dispatch(gemm, [&]<typename T, typename N>(T, N) {
    const T* from = In<T>(x);
    const N *p = In<N>(gemm), *b = In<N>(bias);
    T* to = In<T>(out);
    EachShare(x.size(0), n,
              [&](int64_t r, int64_t rows) { AddGemmRows(from + r * n, p + r * n, b, rows, n, to + r * n); });
  });
}

void AddColumnSums(const at::Tensor& d, const at::Tensor& sums, RowCode code) {
  if (ByPrograms(d, code)) return device::AddColumnSums(d, sums);
  const int64_t n = d.size(1);
  Dispatch(d, [&]<typename T, typename N>(T, N) {
    const N* from = In<N>(d);
    EachShareSumming<T>(d.size(0), n, {In<T>(sums)},
                        [&](int64_t r, int64_t rows, T* part) { ColumnSumRows(from + r * n, rows, n, part); });
  });
}

void NarrowAndSum(const at::Tensor& d, const at::Tensor& narrow, const at::Tensor& sums, RowCode code) {
  if (ByPrograms(d, code)) return device::NarrowAndSum(d, narrow, sums);
  const int64_t n = d.size(1);
  Dispatch(narrow, [&]<typename T, typename N>(T, N) {
    const T* from = In<T>(d);
    N* to = In<N>(narrow);
    EachShareSumming<T>(d.size(0), n, {In<T>(sums)},
                        [&](int64_t r, int64_t rows, T* part) { NarrowRows(from + r * n, rows, n, to + r * n, part); });
  });
}

void CrossEntropy(const at::Tensor& logits, const at::Tensor& targets, double scale, const at::Tensor& loss_sum,
                  RowCode code, const at::Tensor& loss_scale) {
  if (ByPrograms(logits, code)) return device::CrossEntropy(logits, targets, scale, loss_sum, loss_scale);
  if (loss_scale.defined()) scale *= *In<float>(loss_scale);
  TORCH_CHECK(logits.stride(1) == 1, "row kernels take whole rows");
  const int64_t n = logits.size(1), stride = logits.stride(0), threads = at::get_num_threads();
  std::vector<double> losses(static_cast<size_t>(threads), 0.0);
  Dispatch(logits, [&]<typename T, typename N>(T, N) {
    N* x = logits.mutable_data_ptr<N>();
    const int64_t* target = In<int64_t>(targets);
    const at::Tensor room = at::empty({std::is_same_v<N, T> ? 0 : threads * n}, at::dtype<T>());
    T* const wide = room.mutable_data_ptr<T>();
    EachShare(logits.size(0), n, [&](int64_t r, int64_t rows) {
      const int64_t thread = at::get_thread_num();
      losses[static_cast<size_t>(thread)] +=
          CrossEntropyRows(x + r * stride, stride, target + r, rows, n, static_cast<T>(scale), wide + thread * n);
    });
  });
  double loss = 0;
  for (const double part : losses) loss += part;
  *In<double>(loss_sum) += loss;
}

void Widen(const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK(from.sizes() == to.sizes(), "a matrix is widened into one of its size");
  float* const out = Rows<float>(to);
  const int64_t n = from.size(1), stride = from.stride(0), to_stride = to.stride(0);
  DispatchNarrow(from, [&]<typename N>(N) {
    const N* const in = Rows<N>(from);
    EachShare(from.size(0), n, [&](int64_t r, int64_t rows) {
      WidenMatrix(in + r * stride, stride, rows, n, out + r * to_stride, to_stride);
    });
  });
}

void Round(const at::Tensor& from, const at::Tensor& bias, const at::Tensor& to) {
  TORCH_CHECK(from.sizes() == to.sizes(), "a matrix is rounded into one of its size");
  const float* const in = Rows<float>(from);
  const int64_t n = from.size(1), stride = from.stride(0), to_stride = to.stride(0);
  DispatchNarrow(to, [&]<typename N>(N) {
    const N* const added = bias.defined() ? In<N>(bias) : nullptr;
    N* const out = Rows<N>(to);
    EachShare(from.size(0), n, [&](int64_t r, int64_t rows) {
      if (added != nullptr) {
        RoundMatrixWithBias(in + r * stride, stride, added, rows, n, out + r * to_stride, to_stride);
      } else {
        RoundMatrix(in + r * stride, stride, rows, n, out + r * to_stride, to_stride);
      }
    });
  });
}

void AddRounded(const at::Tensor& gemm, double alpha, const at::Tensor& to) {
  TORCH_CHECK(gemm.sizes() == to.sizes(), "a matrix is added to one of its size");
  float* const out = Rows<float>(to);
  const int64_t n = gemm.size(1), stride = gemm.stride(0), to_stride = to.stride(0);
  Dispatch(gemm, [&]<typename T, typename N>(T, N) {
    if constexpr (std::is_same_v<T, float>) {
      const N* const in = Rows<N>(gemm);
      EachShare(gemm.size(0), n, [&](int64_t r, int64_t rows) {
        AddRoundedMatrix(in + r * stride, stride, rows, n, static_cast<float>(alpha), out + r * to_stride, to_stride);
      });
    } else {
      TORCH_CHECK(false, "a gemm in float64 is not rounded to bf16");
    }
  });
}

}  // namespace muster::units
