#include "worker/units/cpu_attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "worker/units/vector_math.h"

// BLAS from LibTorch: the overhead of LibTorch's operators exceeds the GEMM of a block.
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
  // BLAS is column-major: the same memory is the transposed result, so b comes before a.
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

// to = from, each row times its factor; `to` may be `from`.
template <typename T, typename N>
MUSTER_VECTOR void ScaleRows(Matrix<T> from, int64_t rows, int64_t width, const T* factors, Matrix<N> to) {
  for (int64_t i = 0; i < rows; ++i) {
    const T* const row = from.data + i * from.stride;
    N* const out = to.data + i * to.stride;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) Put(row[j] * factors[i], out[j]);
  }
}

template <typename T, typename N>
MUSTER_VECTOR void WidenRows(Matrix<N> from, int64_t rows, int64_t width, Matrix<T> to) {
  for (int64_t i = 0; i < rows; ++i) {
    const N* const row = from.data + i * from.stride;
    T* const out = to.data + i * to.stride;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) out[j] = Wide(row[j]);
  }
}

template <typename T, typename N>
MUSTER_VECTOR void NarrowRows(Matrix<T> from, int64_t rows, int64_t width, Matrix<N> to) {
  for (int64_t i = 0; i < rows; ++i) {
    const T* const row = from.data + i * from.stride;
    N* const out = to.data + i * to.stride;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) Put(row[j], out[j]);
  }
}

// Turns scores into weights, and d from the gradient of the weights into the gradient of the unscaled scores. `out` and
// `d_out` are the rows' outputs and their gradients; softmax's backward subtracts their dot product.
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

// A thread's scratch memory: `blocks` matrices of [kQueries, tokens] and, if tensors are bf16 (N), fp32 (T) copies of
// some of their rows: `head_rooms` for all of a head's tokens, then `block_rooms` for one block's.
struct Rooms {
  int64_t blocks, head_rooms, block_rooms;
};

template <typename T, typename N>
class Scratch {
 public:
  Scratch(T* data, const Sizes& z, const Rooms& r)
      : data_(data),
        rooms_(data + r.blocks * kQueries * z.tokens),
        tokens_(z.tokens),
        head_(z.head),
        head_rooms_(r.head_rooms) {}

  static int64_t Elements(const Sizes& z, const Rooms& r) {
    return r.blocks * kQueries * z.tokens +
           (std::is_same_v<T, N> ? 0 : (r.head_rooms * z.tokens + r.block_rooms * kQueries) * z.head);
  }

  Matrix<T> Block(int64_t index, int64_t keys) const { return {data_ + index * kQueries * tokens_, keys}; }

  // Memory of type T for `rows`: the rows themselves, or the (uninitialized) room `index`.
  Matrix<T> Room(int64_t index, Matrix<N> rows) const {
    if constexpr (std::is_same_v<T, N>) {
      return rows;
    } else {
      return {rooms_ + (std::min(index, head_rooms_) * tokens_ + std::max<int64_t>(0, index - head_rooms_) * kQueries) *
                           head_,
              head_};
    }
  }

  // The same, with the rows' values.
  Matrix<T> Read(int64_t index, Matrix<N> rows, int64_t count) const {
    const Matrix<T> room = Room(index, rows);
    if constexpr (!std::is_same_v<T, N>) WidenRows(rows, count, head_, room);
    return room;
  }

  // Writes `room` back to its rows.
  void Write(Matrix<T> room, Matrix<N> rows, int64_t count) const {
    if constexpr (!std::is_same_v<T, N>) NarrowRows(room, count, head_, rows);
  }

 private:
  T *const data_, *const rooms_;
  const int64_t tokens_, head_, head_rooms_;
};

// body(sequence, head, scratch)
template <typename T, typename N, typename F>
void EachHead(const at::Tensor& qkv, const Sizes& z, const Rooms& rooms, const F& body) {
  const int64_t each = Scratch<T, N>::Elements(z, rooms);
  const at::Tensor room = at::empty({at::get_num_threads(), each}, at::dtype<T>());
  T* const base = room.mutable_data_ptr<T>();
  at::parallel_for(0, z.sequences * z.heads, 1, [&](int64_t begin, int64_t end) {
    const Scratch<T, N> mine(base + at::get_thread_num() * each, z, rooms);
    for (int64_t i = begin; i < end; ++i) body(i / z.heads, i % z.heads, mine);
  });
}

// One head of a tensor whose tokens are `stride` apart.
template <typename N>
Matrix<N> Head(N* data, const Sizes& z, int64_t sequence, int64_t offset, int64_t stride) {
  return {data + sequence * z.tokens * stride + offset, stride};
}

template <typename T, typename N>
void AttendAs(const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& log_sums) {
  const Sizes z = SizesOf(qkv);
  const int64_t c = z.width();
  N *const in = Data<N>(qkv), *const to = Data<N>(out);
  T* const sums = Data<T>(log_sums);
  const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(z.head)));
  EachHead<T, N>(qkv, z, {1, 2, 2}, [&](int64_t sequence, int64_t head, const Scratch<T, N>& scratch) {
    const auto qkv_rows = [&](int64_t p) { return Head(in, z, sequence, p * c + head * z.head, 3 * c); };
    const Matrix<T> k = scratch.Read(0, qkv_rows(1), z.tokens), v = scratch.Read(1, qkv_rows(2), z.tokens);
    T factors[kQueries];
    for (int64_t first = 0; first < z.tokens; first += kQueries) {
      const int64_t n = std::min(kQueries, z.tokens - first), end = first + n;
      const Matrix<N> y = Head(to, z, sequence, head * z.head, c).From(first);
      const Matrix<T> q = scratch.Read(2, qkv_rows(0).From(first), n), wide = scratch.Room(3, y);
      const Matrix<T> scores = scratch.Block(0, end);
      Multiply(false, true, n, end, z.head, scale, q, k, T(0), scores);
      SoftmaxRows(scores, n, first, end, sums + (sequence * z.heads + head) * z.tokens + first, factors);
      Multiply(false, false, n, z.head, end, T(1), scores, v, T(0), wide);
      ScaleRows(wide, n, z.head, factors, y);
    }
  });
}

template <typename T, typename N>
void AttendBackwardAs(const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& log_sums, const at::Tensor& d_out,
                      const at::Tensor& d_qkv) {
  const Sizes z = SizesOf(qkv);
  const int64_t c = z.width();
  N *const in = Data<N>(qkv), *const d_in = Data<N>(d_qkv), *const from = Data<N>(out), *const d_from = Data<N>(d_out);
  const T* const sums = Data<T>(log_sums);
  const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(z.head)));
  EachHead<T, N>(qkv, z, {2, 4, 4}, [&](int64_t sequence, int64_t head, const Scratch<T, N>& scratch) {
    const auto qkv_rows = [&](N* data, int64_t p) { return Head(data, z, sequence, p * c + head * z.head, 3 * c); };
    const auto whole = [&](N* data) { return Head(data, z, sequence, head * z.head, c); };
    const Matrix<T> k = scratch.Read(0, qkv_rows(in, 1), z.tokens), v = scratch.Read(1, qkv_rows(in, 2), z.tokens);
    const Matrix<T> dk = scratch.Room(2, qkv_rows(d_in, 1)), dv = scratch.Room(3, qkv_rows(d_in, 2));
    // From the last block, which has all keys and so writes all of dk and dv; the others add to them.
    const int64_t last = (z.tokens - 1) / kQueries * kQueries;
    for (int64_t first = last; first >= 0; first -= kQueries) {
      const int64_t n = std::min(kQueries, z.tokens - first), end = first + n;
      const T add = first == last ? 0 : 1;
      const Matrix<T> q = scratch.Read(4, qkv_rows(in, 0).From(first), n),
                      y = scratch.Read(5, whole(from).From(first), n),
                      dy = scratch.Read(6, whole(d_from).From(first), n),
                      dq = scratch.Room(7, qkv_rows(d_in, 0).From(first));
      const Matrix<T> scores = scratch.Block(0, end), d = scratch.Block(1, end);
      Multiply(false, true, n, end, z.head, scale, q, k, T(0), scores);
      Multiply(false, true, n, end, z.head, T(1), dy, v, T(0), d);
      SoftmaxRowsBackward(scores, d, n, first, end, sums + (sequence * z.heads + head) * z.tokens + first, y, dy,
                          z.head, scale);
      Multiply(false, false, n, z.head, end, T(1), d, k, T(0), dq);
      Multiply(true, false, end, z.head, n, T(1), d, q, add, dk);
      Multiply(true, false, end, z.head, n, T(1), scores, dy, add, dv);
      scratch.Write(dq, qkv_rows(d_in, 0).From(first), n);
    }
    scratch.Write(dk, qkv_rows(d_in, 1), z.tokens);
    scratch.Write(dv, qkv_rows(d_in, 2), z.tokens);
  });
}

}  // namespace

void Attend(const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& log_sums) {
  if (qkv.scalar_type() == at::kBFloat16) return AttendAs<float, c10::BFloat16>(qkv, out, log_sums);
  if (qkv.scalar_type() == at::kFloat) return AttendAs<float, float>(qkv, out, log_sums);
  AttendAs<double, double>(qkv, out, log_sums);
}

void AttendBackward(const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& log_sums, const at::Tensor& d_out,
                    const at::Tensor& d_qkv) {
  if (qkv.scalar_type() == at::kBFloat16)
    return AttendBackwardAs<float, c10::BFloat16>(qkv, out, log_sums, d_out, d_qkv);
  if (qkv.scalar_type() == at::kFloat) return AttendBackwardAs<float, float>(qkv, out, log_sums, d_out, d_qkv);
  AttendBackwardAs<double, double>(qkv, out, log_sums, d_out, d_qkv);
}

}  // namespace muster::units
