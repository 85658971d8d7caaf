#include "worker/units/row_kernels.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "worker/units/vector_math.h"

namespace muster::units {
namespace {

constexpr double kEpsilon = 1e-5;
constexpr double kGelu = 0.7978845608028654, kGeluCube = 0.044715;  // sqrt(2 / pi)
constexpr int64_t kGrain = 16'384;                                  // elements that are worth another thread
constexpr int64_t kBlock = 128;  // rows whose sums are added up before they join a longer sum

template <typename T>
MUSTER_INLINE void Statistics(const T* x, int64_t width, T* statistics) {
  T sum = 0, square = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) sum += x[i];
  const T mean = sum / static_cast<T>(width);
#pragma omp simd reduction(+ : square)
  for (int64_t i = 0; i < width; ++i) square += (x[i] - mean) * (x[i] - mean);
  statistics[0] = mean;
  statistics[1] = T(1) / std::sqrt(square / static_cast<T>(width) + static_cast<T>(kEpsilon));
}

template <typename T>
MUSTER_INLINE void Normalise(const T* x, const T* statistics, const T* weight, const T* bias, int64_t width, T* out) {
  const T mean = statistics[0], rstd = statistics[1];
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) out[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
}

template <typename T>
MUSTER_INLINE void AddTo(const T* x, const T* bias, int64_t width, T* sum) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) sum[i] += x[i] + bias[i];
}

template <typename T>
MUSTER_INLINE void AddInto(const T* x, int64_t width, T* sum) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) sum[i] += x[i];
}

template <typename T>
MUSTER_INLINE void Add(const T* x, const T* bias, int64_t width, T* out) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) out[i] = x[i] + bias[i];
}

template <typename T>
MUSTER_INLINE void NormRowBackward(const T* d, const T* x, const T* statistics, const T* weight, int64_t width, T* dx,
                                   T* d_weight, T* d_bias) {
  const T mean = statistics[0], rstd = statistics[1];
  T sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
  for (int64_t i = 0; i < width; ++i) {
    const T hat = (x[i] - mean) * rstd, dw = d[i] * weight[i];
    sum += dw;
    product += dw * hat;
    d_weight[i] += d[i] * hat;
    d_bias[i] += d[i];
  }
  const T a = sum / static_cast<T>(width), b = product / static_cast<T>(width);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const T hat = (x[i] - mean) * rstd;
    dx[i] += rstd * (d[i] * weight[i] - a - hat * b);
  }
}

template <typename T>
MUSTER_INLINE void GeluRow(T* x, const T* bias, int64_t width, T* out) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const T v = x[i] + bias[i], u = static_cast<T>(kGelu) * v * (1 + static_cast<T>(kGeluCube) * v * v);
    x[i] = v;
    out[i] = v / (1 + Exp(-2 * u));
  }
}

template <typename T>
MUSTER_INLINE void GeluRowBackward(const T* x, int64_t width, T* out, T* d, T* d_bias) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const T v = x[i], cube = static_cast<T>(kGeluCube) * v * v, u = static_cast<T>(kGelu) * v * (1 + cube);
    const T s = 1 / (1 + Exp(-2 * u));
    const T slope = s + v * s * (1 - s) * (2 * static_cast<T>(kGelu)) * (1 + 3 * cube);
    const T dv = d[i] * slope;
    out[i] = v * s;
    d[i] = dv;
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

// The loops over rows. What they call is inlined, so that it is compiled for their vector unit.
template <typename T>
MUSTER_VECTOR void NormRows(const T* x, const T* w, const T* b, int64_t rows, int64_t n, T* out, T* st) {
  for (int64_t r = 0; r < rows; ++r) {
    Statistics(x + r * n, n, st + 2 * r);
    Normalise(x + r * n, st + 2 * r, w, b, n, out + r * n);
  }
}

template <typename T>
MUSTER_VECTOR void AddNormRows(const T* x, T* sum, const T* sum_bias, const T* w, const T* b, int64_t rows, int64_t n,
                               T* out, T* st) {
  for (int64_t r = 0; r < rows; ++r) {
    AddTo(x + r * n, sum_bias, n, sum + r * n);
    Statistics(sum + r * n, n, st + 2 * r);
    Normalise(sum + r * n, st + 2 * r, w, b, n, out + r * n);
  }
}

template <typename T>
MUSTER_VECTOR void NormAgainRows(const T* x, const T* st, const T* w, const T* b, int64_t rows, int64_t n, T* out) {
  for (int64_t r = 0; r < rows; ++r) Normalise(x + r * n, st + 2 * r, w, b, n, out + r * n);
}

template <typename T>
MUSTER_VECTOR void NormBackwardRows(const T* d, const T* x, const T* st, const T* w, int64_t rows, int64_t n, T* dx,
                                    T* d_weight, T* d_bias) {
  for (int64_t r = 0; r < rows; ++r) {
    NormRowBackward(d + r * n, x + r * n, st + 2 * r, w, n, dx + r * n, d_weight, d_bias);
  }
}

template <typename T>
MUSTER_VECTOR void GeluRows(T* x, const T* b, int64_t rows, int64_t n, T* out) {
  for (int64_t r = 0; r < rows; ++r) GeluRow(x + r * n, b, n, out + r * n);
}

template <typename T>
MUSTER_VECTOR void GeluBackwardRows(const T* x, int64_t rows, int64_t n, T* out, T* d, T* d_bias) {
  for (int64_t r = 0; r < rows; ++r) GeluRowBackward(x + r * n, n, out + r * n, d + r * n, d_bias);
}

template <typename T>
MUSTER_VECTOR void AddBiasRows(const T* x, const T* b, int64_t rows, int64_t n, T* out) {
  for (int64_t r = 0; r < rows; ++r) Add(x + r * n, b, n, out + r * n);
}

template <typename T>
MUSTER_VECTOR void ColumnSumRows(const T* d, int64_t rows, int64_t n, T* sums) {
  for (int64_t r = 0; r < rows; ++r) AddInto(d + r * n, n, sums);
}

template <typename T>
MUSTER_VECTOR double CrossEntropyRows(T* x, const int64_t* targets, int64_t rows, int64_t n, T scale) {
  double loss = 0;
  for (int64_t r = 0; r < rows; ++r) loss += CrossEntropyRow(x + r * n, n, targets[r], scale);
  return loss;
}

template <typename F>
void Dispatch(const at::Tensor& t, const F& body) {
  if (t.scalar_type() == at::kFloat) {
    body(float{});
  } else {
    TORCH_CHECK(t.scalar_type() == at::kDouble, "row kernels take fp32 and float64, not ", t.scalar_type());
    body(double{});
  }
}

template <typename T>
T* In(const at::Tensor& t) {
  TORCH_CHECK(t.is_contiguous() && t.is_cpu(), "row kernels take contiguous CPU tensors");
  return static_cast<T*>(t.mutable_data_ptr());
}

// body(first row, rows) on each thread's share.
template <typename F>
void EachShare(int64_t rows, int64_t width, const F& body) {
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / width),
                   [&](int64_t begin, int64_t end) { body(begin, end - begin); });
}

// body(first row, rows, sums) on pieces of kBlock rows of each thread's share, `vectors` sums of `width` each; then
// adds the sums to `totals`, in the order of the rows. Short sums keep their digits where one long one would lose them.
template <typename T, typename F>
void EachShareSumming(int64_t rows, int64_t width, std::vector<T*> totals, const F& body) {
  const int64_t n = width * static_cast<int64_t>(totals.size()), most = at::get_num_threads();
  std::vector<T> sums(static_cast<size_t>(n * most), T(0));
  EachShare(rows, width, [&](int64_t begin, int64_t count) {
    T* const mine = sums.data() + n * at::get_thread_num();
    std::vector<T> piece(static_cast<size_t>(n));
    for (int64_t r = 0; r < count; r += kBlock) {
      std::fill(piece.begin(), piece.end(), T(0));
      body(begin + r, std::min(kBlock, count - r), piece.data());
      ColumnSumRows(piece.data(), 1, n, mine);
    }
  });
  for (int64_t thread = 0; thread < most; ++thread) {
    for (size_t v = 0; v < totals.size(); ++v) {
      ColumnSumRows(sums.data() + n * thread + width * static_cast<int64_t>(v), 1, width, totals[v]);
    }
  }
}

}  // namespace

void Norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out,
          const at::Tensor& statistics) {
  const int64_t n = x.size(1);
  Dispatch(x, [&]<typename T>(T) {
    const T *from = In<T>(x), *w = In<T>(weight), *b = In<T>(bias);
    T *to = In<T>(out), *st = In<T>(statistics);
    EachShare(x.size(0), n,
              [&](int64_t r, int64_t rows) { NormRows(from + r * n, w, b, rows, n, to + r * n, st + 2 * r); });
  });
}

void AddAndNorm(const at::Tensor& x, const at::Tensor& sum, const at::Tensor& sum_bias, const at::Tensor& weight,
                const at::Tensor& bias, const at::Tensor& out, const at::Tensor& statistics) {
  const int64_t n = x.size(1);
  Dispatch(x, [&]<typename T>(T) {
    const T *from = In<T>(x), *sb = In<T>(sum_bias), *w = In<T>(weight), *b = In<T>(bias);
    T *both = In<T>(sum), *to = In<T>(out), *st = In<T>(statistics);
    EachShare(x.size(0), n, [&](int64_t r, int64_t rows) {
      AddNormRows(from + r * n, both + r * n, sb, w, b, rows, n, to + r * n, st + 2 * r);
    });
  });
}

void NormAgain(const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight, const at::Tensor& bias,
               const at::Tensor& out) {
  const int64_t n = x.size(1);
  Dispatch(x, [&]<typename T>(T) {
    const T *from = In<T>(x), *st = In<T>(statistics), *w = In<T>(weight), *b = In<T>(bias);
    T* to = In<T>(out);
    EachShare(x.size(0), n,
              [&](int64_t r, int64_t rows) { NormAgainRows(from + r * n, st + 2 * r, w, b, rows, n, to + r * n); });
  });
}

void NormBackward(const at::Tensor& d_out, const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight,
                  const at::Tensor& d_x, const at::Tensor& d_weight, const at::Tensor& d_bias) {
  const int64_t n = x.size(1);
  Dispatch(x, [&]<typename T>(T) {
    const T *d = In<T>(d_out), *from = In<T>(x), *st = In<T>(statistics), *w = In<T>(weight);
    T* to = In<T>(d_x);
    EachShareSumming<T>(x.size(0), n, {In<T>(d_weight), In<T>(d_bias)}, [&](int64_t r, int64_t rows, T* sums) {
      NormBackwardRows(d + r * n, from + r * n, st + 2 * r, w, rows, n, to + r * n, sums, sums + n);
    });
  });
}

void AddAndGelu(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& out) {
  const int64_t n = x.size(1);
  Dispatch(x, [&]<typename T>(T) {
    const T* b = In<T>(bias);
    T *in = In<T>(x), *to = In<T>(out);
    EachShare(x.size(0), n, [&](int64_t r, int64_t rows) { GeluRows(in + r * n, b, rows, n, to + r * n); });
  });
}

void GeluBackward(const at::Tensor& x, const at::Tensor& out, const at::Tensor& d, const at::Tensor& d_bias) {
  const int64_t n = x.size(1);
  Dispatch(x, [&]<typename T>(T) {
    const T* in = In<T>(x);
    T *to = In<T>(out), *gradient = In<T>(d);
    EachShareSumming<T>(x.size(0), n, {In<T>(d_bias)}, [&](int64_t r, int64_t rows, T* sums) {
      GeluBackwardRows(in + r * n, rows, n, to + r * n, gradient + r * n, sums);
    });
  });
}

void AddBias(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& out) {
  const int64_t n = x.size(1);
  Dispatch(x, [&]<typename T>(T) {
    const T *from = In<T>(x), *b = In<T>(bias);
    T* to = In<T>(out);
    EachShare(x.size(0), n, [&](int64_t r, int64_t rows) { AddBiasRows(from + r * n, b, rows, n, to + r * n); });
  });
}

void AddColumnSums(const at::Tensor& d, const at::Tensor& sums) {
  const int64_t n = d.size(1);
  Dispatch(d, [&]<typename T>(T) {
    const T* from = In<T>(d);
    EachShareSumming<T>(d.size(0), n, {In<T>(sums)},
                        [&](int64_t r, int64_t rows, T* part) { ColumnSumRows(from + r * n, rows, n, part); });
  });
}

double CrossEntropy(const at::Tensor& logits, const at::Tensor& targets, double scale) {
  const int64_t n = logits.size(1);
  std::vector<double> losses(static_cast<size_t>(at::get_num_threads()), 0.0);
  Dispatch(logits, [&]<typename T>(T) {
    T* x = In<T>(logits);
    const int64_t* target = In<int64_t>(targets);
    EachShare(logits.size(0), n, [&](int64_t r, int64_t rows) {
      losses[static_cast<size_t>(at::get_thread_num())] +=
          CrossEntropyRows(x + r * n, target + r, rows, n, static_cast<T>(scale));
    });
  });
  double loss = 0;
  for (const double part : losses) loss += part;
  return loss;
}

}  // namespace muster::units
