#include "worker/units/cpu_attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "worker/units/vector_math.h"

// BLAS, out of LibTorch: its own operators cost more than a block's product.
extern "C" {
void sgemm_(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*,
            const float*, const int*, const float*, float*, const int*);
void dgemm_(const char*, const char*, const int*, const int*, const int*, const double*, const double*, const int*,
            const double*, const int*, const double*, double*, const int*);
}

namespace muster::units {
namespace {

constexpr int64_t kQueries = 64;  // of a block

// A row-major matrix with `stride` elements from row to row.
template <typename T>
struct Matrix {
  T* data;
  int64_t stride;
  Matrix From(int64_t row) const { return {data + row * stride, stride}; }
};

// c [m, n] = alpha a b + beta c; a is [m, k], or stored as [k, m]; b is [k, n], or stored as [n, k].
template <typename T>
void Multiply(bool a_turned, bool b_turned, int64_t m, int64_t n, int64_t k, T alpha, Matrix<T> a, Matrix<T> b, T beta,
              Matrix<T> c) {
  // BLAS counts by columns: there the same memory is the transposed product, b before a.
  const int rows = static_cast<int>(n), columns = static_cast<int>(m), inner = static_cast<int>(k);
  const int lda = static_cast<int>(b.stride), ldb = static_cast<int>(a.stride), ldc = static_cast<int>(c.stride);
  const char *first = b_turned ? "T" : "N", *second = a_turned ? "T" : "N";
  if constexpr (std::is_same_v<T, float>) {
    sgemm_(first, second, &rows, &columns, &inner, &alpha, b.data, &lda, a.data, &ldb, &beta, c.data, &ldc);
  } else {
    dgemm_(first, second, &rows, &columns, &inner, &alpha, b.data, &lda, a.data, &ldb, &beta, c.data, &ldc);
  }
}

// Row i of scores [rows, end) has `first` + i + 1 keys; the others get weight zero. Rows become exp(score - largest);
// log_sums, and in `factors` what makes their sum one.
template <typename T>
MUSTER_VECTOR void SoftmaxRows(Matrix<T> scores, int64_t rows, int64_t first, int64_t end, T* log_sums, T* factors) {
  for (int64_t i = 0; i < rows; ++i) {
    T* const s = scores.data + i * scores.stride;
    const int64_t keys = first + i + 1;
    T top = s[0], sum = 0;
#pragma omp simd reduction(max : top)
    for (int64_t j = 0; j < keys; ++j) top = s[j] > top ? s[j] : top;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < keys; ++j) {
      s[j] = Exp(s[j] - top);
      sum += s[j];
    }
    for (int64_t j = keys; j < end; ++j) s[j] = 0;
    log_sums[i] = top + std::log(sum);
    factors[i] = 1 / sum;
  }
}

template <typename T>
MUSTER_VECTOR void ScaleRows(Matrix<T> x, int64_t rows, int64_t width, const T* factors) {
  for (int64_t i = 0; i < rows; ++i) {
    T* const row = x.data + i * x.stride;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) row[j] *= factors[i];
  }
}

// Scores become weights; d, the gradients of the weights, becomes that of the scores before their scale. `out` and
// `d_out` are the rows' outputs, whose product is what a softmax subtracts.
template <typename T>
MUSTER_VECTOR void SoftmaxRowsBackward(Matrix<T> scores, Matrix<T> d, int64_t rows, int64_t first, int64_t end,
                                       const T* log_sums, Matrix<T> out, Matrix<T> d_out, int64_t width, T scale) {
  for (int64_t i = 0; i < rows; ++i) {
    T *const s = scores.data + i * scores.stride, *const ds = d.data + i * d.stride;
    const T *const o = out.data + i * out.stride, *const go = d_out.data + i * d_out.stride;
    const int64_t keys = first + i + 1;
    const T log_sum = log_sums[i];
    T mean = 0;
#pragma omp simd reduction(+ : mean)
    for (int64_t j = 0; j < width; ++j) mean += o[j] * go[j];
#pragma omp simd
    for (int64_t j = 0; j < keys; ++j) {
      s[j] = Exp(s[j] - log_sum);
      ds[j] = s[j] * (ds[j] - mean) * scale;
    }
    for (int64_t j = keys; j < end; ++j) s[j] = ds[j] = 0;
  }
}

struct Sizes {
  int64_t sequences, tokens, heads, head;  // head: elements of one
  int64_t width() const { return heads * head; }
};

Sizes SizesOf(const at::Tensor& qkv) {
  TORCH_CHECK(qkv.dim() == 5 && qkv.size(2) == 3, "attention takes [sequences, tokens, 3, heads, width / heads]");
  return {qkv.size(0), qkv.size(1), qkv.size(3), qkv.size(4)};
}

template <typename T>
T* Data(const at::Tensor& t) {
  TORCH_CHECK(t.is_contiguous() && t.is_cpu(), "attention takes contiguous CPU tensors");
  return t.mutable_data_ptr<T>();
}

// body(sequence, head, scratch), scratch `blocks` matrices of [kQueries, tokens].
template <typename T, typename F>
void EachHead(const at::Tensor& qkv, const Sizes& z, int64_t blocks, const F& body) {
  const int64_t each = blocks * kQueries * z.tokens;
  const at::Tensor scratch = at::empty({at::get_num_threads(), each}, qkv.options());
  T* const base = scratch.mutable_data_ptr<T>();
  at::parallel_for(0, z.sequences * z.heads, 1, [&](int64_t begin, int64_t end) {
    T* const mine = base + at::get_thread_num() * each;
    for (int64_t i = begin; i < end; ++i) body(i / z.heads, i % z.heads, mine);
  });
}

// One head of a tensor whose tokens are `stride` apart.
template <typename T>
Matrix<T> Head(T* data, const Sizes& z, int64_t sequence, int64_t offset, int64_t stride) {
  return {data + sequence * z.tokens * stride + offset, stride};
}

template <typename T>
void AttendAs(const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& log_sums) {
  const Sizes z = SizesOf(qkv);
  const int64_t c = z.width();
  T *const in = Data<T>(qkv), *const to = Data<T>(out), *const sums = Data<T>(log_sums);
  const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(z.head)));
  EachHead<T>(qkv, z, 1, [&](int64_t sequence, int64_t head, T* scratch) {
    const auto part = [&](int64_t p) { return Head(in, z, sequence, p * c + head * z.head, 3 * c); };
    const Matrix<T> q = part(0), k = part(1), v = part(2), y = Head(to, z, sequence, head * z.head, c);
    T factors[kQueries];
    for (int64_t first = 0; first < z.tokens; first += kQueries) {
      const int64_t n = std::min(kQueries, z.tokens - first), end = first + n;
      const Matrix<T> scores{scratch, end};
      Multiply(false, true, n, end, z.head, scale, q.From(first), k, T(0), scores);
      SoftmaxRows(scores, n, first, end, sums + (sequence * z.heads + head) * z.tokens + first, factors);
      Multiply(false, false, n, z.head, end, T(1), scores, v, T(0), y.From(first));
      ScaleRows(y.From(first), n, z.head, factors);
    }
  });
}

template <typename T>
void AttendBackwardAs(const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& log_sums, const at::Tensor& d_out,
                      const at::Tensor& d_qkv) {
  const Sizes z = SizesOf(qkv);
  const int64_t c = z.width();
  T *const in = Data<T>(qkv), *const d_in = Data<T>(d_qkv), *const from = Data<T>(out), *const d_from = Data<T>(d_out);
  const T* const sums = Data<T>(log_sums);
  const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(z.head)));
  EachHead<T>(qkv, z, 2, [&](int64_t sequence, int64_t head, T* scratch) {
    const auto part = [&](T* data, int64_t p) { return Head(data, z, sequence, p * c + head * z.head, 3 * c); };
    const Matrix<T> q = part(in, 0), k = part(in, 1), v = part(in, 2);
    const Matrix<T> dq = part(d_in, 0), dk = part(d_in, 1), dv = part(d_in, 2);
    const Matrix<T> y = Head(from, z, sequence, head * z.head, c), dy = Head(d_from, z, sequence, head * z.head, c);
    // From the last block, which has all keys and so writes all of dk and dv; the others add to them.
    const int64_t last = (z.tokens - 1) / kQueries * kQueries;
    for (int64_t first = last; first >= 0; first -= kQueries) {
      const int64_t n = std::min(kQueries, z.tokens - first), end = first + n;
      const T add = first == last ? 0 : 1;
      const Matrix<T> scores{scratch, end}, d{scratch + kQueries * z.tokens, end};
      Multiply(false, true, n, end, z.head, scale, q.From(first), k, T(0), scores);
      Multiply(false, true, n, end, z.head, T(1), dy.From(first), v, T(0), d);
      SoftmaxRowsBackward(scores, d, n, first, end, sums + (sequence * z.heads + head) * z.tokens + first,
                          y.From(first), dy.From(first), z.head, scale);
      Multiply(false, false, n, z.head, end, T(1), d, k, T(0), dq.From(first));
      Multiply(true, false, end, z.head, n, T(1), d, q.From(first), add, dk);
      Multiply(true, false, end, z.head, n, T(1), scores, dy.From(first), add, dv);
    }
  });
}

}  // namespace

void Attend(const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& log_sums) {
  if (qkv.scalar_type() == at::kFloat) return AttendAs<float>(qkv, out, log_sums);
  AttendAs<double>(qkv, out, log_sums);
}

void AttendBackward(const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& log_sums, const at::Tensor& d_out,
                    const at::Tensor& d_qkv) {
  if (qkv.scalar_type() == at::kFloat) return AttendBackwardAs<float>(qkv, out, log_sums, d_out, d_qkv);
  AttendBackwardAs<double>(qkv, out, log_sums, d_out, d_qkv);
}

}  // namespace muster::units
