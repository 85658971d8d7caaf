#include "worker/units/cpu_attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "worker/units/row_shares.h"
#include "worker/units/vector_math.h"

// BLAS from LibTorch: the overhead of LibTorch's operators exceeds the GEMM of a block.
extern "C" {
void sgemm_(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*,
            const float*, const int*, const float*, float*, const int*);
void dgemm_(const char*, const char*, const int*, const int*, const int*, const double*, const double*, const int*,
            const double*, const int*, const double*, double*, const int*);
int MKL_Set_Num_Threads_Local(int);  // of the calling thread, 0: as of all; returns what it was
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

// A block of queries at positions [first, first + rows), which q has as [own, own + rows), and the keys
// [begin, begin + keys) that they see.
struct QueryBlock {
  int64_t own, first, rows, begin, keys, window;  // window: 0 for none
  // Those that row i sees, as columns of its scores.
  int64_t From(int64_t i) const { return window == 0 ? 0 : std::max<int64_t>(0, first + i + 1 - window - begin); }
  int64_t To(int64_t i) const { return first + i + 1 - begin; }
};

// Scores of keys that a row does not see get weight zero. Rows become exp(score - largest); log_sums, and in `factors`
// what makes their sum one.
template <typename T>
MUSTER_VECTOR void SoftmaxRows(Matrix<T> scores, const QueryBlock& block, T* log_sums, T* factors) {
  for (int64_t i = 0; i < block.rows; ++i) {
    T* const s = scores.data + i * scores.stride;
    const int64_t from = block.From(i), to = block.To(i);
    T top = s[from], sum = 0;
#pragma omp simd reduction(max : top)
    for (int64_t j = from; j < to; ++j) top = s[j] > top ? s[j] : top;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = from; j < to; ++j) {
      s[j] = Exp(s[j] - top);
      sum += s[j];
    }
    for (int64_t j = 0; j < from; ++j) s[j] = 0;
    for (int64_t j = to; j < block.keys; ++j) s[j] = 0;
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

template <typename T>
void ZeroRows(Matrix<T> to, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i) std::fill_n(to.From(i).data, width, T(0));
}

// Turns scores into weights, and d from the gradient of the weights into the gradient of the unscaled scores. `out` and
// `d_out` are the rows' outputs and their gradients; softmax's backward subtracts their dot product.
template <typename T>
MUSTER_VECTOR void SoftmaxRowsBackward(Matrix<T> scores, Matrix<T> d, const QueryBlock& block, const T* log_sums,
                                       Matrix<T> out, Matrix<T> d_out, int64_t width, T scale) {
  for (int64_t i = 0; i < block.rows; ++i) {
    T *const s = scores.data + i * scores.stride, *const ds = d.data + i * d.stride;
    const T *const o = out.data + i * out.stride, *const go = d_out.data + i * d_out.stride;
    const int64_t from = block.From(i), to = block.To(i);
    const T log_sum = log_sums[i];
    T mean = 0;
#pragma omp simd reduction(+ : mean)
    for (int64_t j = 0; j < width; ++j) mean += o[j] * go[j];
#pragma omp simd
    for (int64_t j = from; j < to; ++j) {
      s[j] = Exp(s[j] - log_sum);
      ds[j] = s[j] * (ds[j] - mean) * scale;
    }
    for (int64_t j = 0; j < from; ++j) s[j] = ds[j] = 0;
    for (int64_t j = to; j < block.keys; ++j) s[j] = ds[j] = 0;
  }
}

// A block's scores of a head times their factors, of a sequence of `tokens`.
template <typename T>
void DropScores(const DropoutPlace& dropout, int64_t sequence, int64_t head, int64_t tokens, const QueryBlock& block,
                Matrix<T> scores) {
  std::vector<float> factors(static_cast<size_t>(block.keys));
  for (int64_t i = 0; i < block.rows; ++i) {
    DropoutFactors(dropout, sequence, (head * tokens + block.first + i) * tokens + block.begin, block.keys,
                   factors.data());
    T* const row = scores.data + i * scores.stride;
    for (int64_t j = 0; j < block.keys; ++j) row[j] *= static_cast<T>(factors[static_cast<size_t>(j)]);
  }
}

// Lets BLAS compute with the calling thread alone. Inside of a parallel region it does so anyway, but on some CPUs the
// kernel that it chooses, and so the last bit, depends on how many threads it could have.
class OneBlasThread {
 public:
  OneBlasThread() : before_(MKL_Set_Num_Threads_Local(1)) {}
  OneBlasThread(const OneBlasThread&) = delete;
  OneBlasThread& operator=(const OneBlasThread&) = delete;
  ~OneBlasThread() { MKL_Set_Num_Threads_Local(before_); }

 private:
  const int before_;
};

struct Sizes {
  // head: elements of one; window: 0 for none. Of the keys, queries see `seen` at most: those up to the last query.
  int64_t sequences, queries, keys, seen, heads, key_value_heads, head, window;
  std::vector<QueryBlock> blocks = {};  // in the order of the queries
  int64_t width() const { return heads * head; }
  int64_t group() const { return heads / key_value_heads; }
  // The most that a block has.
  int64_t keys_of_block() const { return window == 0 ? seen : std::min(seen, window + kQueries - 1); }
};

// A block's queries are of one run, so that they lie one after another among the keys too.
void AddBlocks(const models::TokenRun& run, int64_t own, Sizes& z) {
  const auto run_begin = static_cast<int64_t>(run.begin), run_end = static_cast<int64_t>(run.begin + run.size);
  for (int64_t first = run_begin; first < run_end; first += kQueries) {
    const int64_t rows = std::min(kQueries, run_end - first);
    const int64_t begin = z.window == 0 ? 0 : std::max<int64_t>(0, first + 1 - z.window);
    z.blocks.push_back({own + first - run_begin, first, rows, begin, first + rows - begin, z.window});
  }
}

Sizes SizesOf(const at::Tensor& q, const at::Tensor& k, int64_t window, std::vector<models::TokenRun> runs) {
  TORCH_CHECK(window >= 0, "attention within a window of ", window);
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4, "attention takes [sequences, tokens, heads, head]");
  TORCH_CHECK(k.size(2) > 0 && q.size(2) % k.size(2) == 0, "attention of ", q.size(2), " heads to ", k.size(2));
  if (runs.empty()) runs = {{0, static_cast<uint64_t>(k.size(1))}};
  // One that covers all tokens is none.
  Sizes z{q.size(0), q.size(1), k.size(1), 0, q.size(2), k.size(2), q.size(3), window < k.size(1) ? window : 0};
  int64_t queries = 0;
  for (const models::TokenRun& run : runs) {
    TORCH_CHECK(static_cast<int64_t>(run.begin) >= z.seen, "attention takes runs of queries in their order");
    AddBlocks(run, queries, z);
    queries += static_cast<int64_t>(run.size);
    z.seen = static_cast<int64_t>(run.begin + run.size);
  }
  TORCH_CHECK(queries == z.queries && z.seen <= z.keys, "attention of ", z.queries, " queries, ", queries,
              " of them in runs, to ", z.keys, " keys");
  return z;
}

template <typename T>
T* Data(const at::Tensor& t) {
  TORCH_CHECK(t.is_contiguous() && t.is_cpu(), "attention takes contiguous CPU tensors");
  return t.mutable_data_ptr<T>();
}

// The tokens of all sequences as rows of one matrix, of which each head is some columns.
template <typename N>
struct Tokens {
  Matrix<N> rows;
  int64_t each;  // rows of a sequence

  Matrix<N> Head(const Sizes& z, int64_t sequence, int64_t head) const {
    const Matrix<N> own = rows.From(sequence * each);
    return {own.data + head * z.head, own.stride};
  }
};

template <typename N>
Tokens<N> TokensOf(const at::Tensor& t, const Sizes& z, int64_t tokens, int64_t heads) {
  TORCH_CHECK(t.is_cpu() && t.sizes() == at::IntArrayRef({z.sequences, tokens, heads, z.head}),
              "attention takes CPU tensors of equal sequences, tokens and heads");
  // The strides of a dimension of size 1 mean nothing.
  const int64_t stride = tokens > 1 ? t.stride(1) : z.sequences > 1 ? t.stride(0) : heads * z.head;
  TORCH_CHECK((z.head <= 1 || t.stride(3) == 1) && (heads <= 1 || t.stride(2) == z.head) &&
                  (z.sequences <= 1 || t.stride(0) == tokens * stride) && stride >= heads * z.head,
              "attention takes heads side by side and tokens equally far apart");
  return {{t.mutable_data_ptr<N>(), stride}, tokens};
}
template <typename N>
Tokens<N> Queries(const at::Tensor& t, const Sizes& z) {
  return TokensOf<N>(t, z, z.queries, z.heads);
}
template <typename N>
Tokens<N> Keys(const at::Tensor& t, const Sizes& z) {
  return TokensOf<N>(t, z, z.keys, z.key_value_heads);
}

template <typename N>
Tokens<N> OutTokens(const at::Tensor& t, const Sizes& z) {
  TORCH_CHECK(t.numel() == z.sequences * z.queries * z.width(), "attention's output has the size of q");
  return {{Data<N>(t), z.width()}, z.queries};
}

// A thread's scratch memory: `blocks` matrices of [kQueries, keys] and, if tensors are bf16 (N), fp32 (T) copies of
// some of their rows: `head_rooms` for all of a head's keys that are seen, then `block_rooms` for one block's queries.
struct Rooms {
  int64_t blocks, head_rooms, block_rooms;
};

template <typename T, typename N>
class Scratch {
 public:
  Scratch(T* data, const Sizes& z, const Rooms& r)
      : data_(data),
        rooms_(data + r.blocks * kQueries * z.keys_of_block()),
        keys_(z.keys_of_block()),
        seen_(z.seen),
        head_(z.head),
        head_rooms_(r.head_rooms) {}

  static int64_t Elements(const Sizes& z, const Rooms& r) {
    return r.blocks * kQueries * z.keys_of_block() +
           (std::is_same_v<T, N> ? 0 : (r.head_rooms * z.seen + r.block_rooms * kQueries) * z.head);
  }

  Matrix<T> Scores(int64_t index, const QueryBlock& block) const {
    return {data_ + index * kQueries * keys_, block.keys};
  }

  // Memory of type T for `rows`: the rows themselves, or the (uninitialized) room `index`.
  Matrix<T> Room(int64_t index, Matrix<N> rows) const {
    if constexpr (std::is_same_v<T, N>) {
      return rows;
    } else {
      return {rooms_ +
                  (std::min(index, head_rooms_) * seen_ + std::max<int64_t>(0, index - head_rooms_) * kQueries) * head_,
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
  const int64_t keys_, seen_, head_, head_rooms_;
};

// body(sequence, head, scratch) for `heads` heads of each sequence.
template <typename T, typename N, typename F>
void EachHead(const Sizes& z, int64_t heads, const Rooms& rooms, const F& body) {
  const int64_t each = Scratch<T, N>::Elements(z, rooms);
  const at::Tensor room = at::empty({at::get_num_threads(), each}, at::dtype<T>());
  T* const base = room.mutable_data_ptr<T>();
  at::parallel_for(0, z.sequences * heads, 1, [&](int64_t begin, int64_t end) {
    const OneBlasThread alone;
    const Scratch<T, N> mine(base + at::get_thread_num() * each, z, rooms);
    for (int64_t i = begin; i < end; ++i) body(i / heads, i % heads, mine);
  });
}

template <typename T, typename N>
void AttendAs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
              const at::Tensor& log_sums, const DropoutPlace& dropout, const Sizes& z) {
  const Tokens<N> queries = Queries<N>(q, z), keys = Keys<N>(k, z), values = Keys<N>(v, z), to = OutTokens<N>(out, z);
  T* const sums = Data<T>(log_sums);
  const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(z.head)));
  EachHead<T, N>(z, z.heads, {1, 2, 2}, [&](int64_t sequence, int64_t head, const Scratch<T, N>& scratch) {
    const int64_t shared = head / z.group();
    const Matrix<T> key = scratch.Read(0, keys.Head(z, sequence, shared), z.seen),
                    value = scratch.Read(1, values.Head(z, sequence, shared), z.seen);
    const Matrix<N> query = queries.Head(z, sequence, head), result = to.Head(z, sequence, head);
    T factors[kQueries];
    for (const QueryBlock& block : z.blocks) {
      const int64_t n = block.rows;
      const Matrix<N> y = result.From(block.own);
      const Matrix<T> x = scratch.Read(2, query.From(block.own), n), wide = scratch.Room(3, y);
      const Matrix<T> scores = scratch.Scores(0, block);
      Multiply(false, true, n, block.keys, z.head, scale, x, key.From(block.begin), T(0), scores);
      SoftmaxRows(scores, block, sums + (sequence * z.heads + head) * z.queries + block.own, factors);
      if (dropout.on()) DropScores<T>(dropout, sequence, head, z.keys, block, scores);
      Multiply(false, false, n, z.head, block.keys, T(1), scores, value.From(block.begin), T(0), wide);
      ScaleRows(wide, n, z.head, factors, y);
    }
  });
}

template <typename T, typename N>
void AttendBackwardAs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                      const at::Tensor& log_sums, const at::Tensor& d_out, const at::Tensor& d_q, const at::Tensor& d_k,
                      const at::Tensor& d_v, const DropoutPlace& dropout, const Sizes& z) {
  const Tokens<N> queries = Queries<N>(q, z), keys = Keys<N>(k, z), values = Keys<N>(v, z);
  const Tokens<N> d_queries = Queries<N>(d_q, z), d_keys = Keys<N>(d_k, z), d_values = Keys<N>(d_v, z);
  const Tokens<N> from = OutTokens<N>(out, z), d_from = OutTokens<N>(d_out, z);
  const T* const sums = Data<T>(log_sums);
  const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(z.head)));
  EachHead<T, N>(z, z.key_value_heads, {2, 4, 4}, [&](int64_t sequence, int64_t group, const Scratch<T, N>& scratch) {
    const Matrix<N> all_dk = d_keys.Head(z, sequence, group), all_dv = d_values.Head(z, sequence, group);
    const Matrix<T> key = scratch.Read(0, keys.Head(z, sequence, group), z.seen),
                    value = scratch.Read(1, values.Head(z, sequence, group), z.seen);
    const Matrix<T> dk = scratch.Room(2, all_dk), dv = scratch.Room(3, all_dv);
    // The last block writes its keys' rows of dk and dv, which without a window are all that are seen; the other
    // blocks, and other heads, add to them.
    const QueryBlock& last = z.blocks.back();
    ZeroRows(dk, last.begin, z.head);
    ZeroRows(dv, last.begin, z.head);
    for (int64_t head = group * z.group(); head < (group + 1) * z.group(); ++head) {
      for (auto at = z.blocks.rbegin(); at != z.blocks.rend(); ++at) {
        const QueryBlock& block = *at;
        const auto rows = [&](const Tokens<N>& tokens) { return tokens.Head(z, sequence, head).From(block.own); };
        const int64_t n = block.rows, begin = block.begin, keys = block.keys;
        const T add = at == z.blocks.rbegin() && head == group * z.group() ? 0 : 1;
        const Matrix<T> x = scratch.Read(4, rows(queries), n), y = scratch.Read(5, rows(from), n),
                        dy = scratch.Read(6, rows(d_from), n), dx = scratch.Room(7, rows(d_queries));
        const Matrix<T> scores = scratch.Scores(0, block), d = scratch.Scores(1, block);
        Multiply(false, true, n, keys, z.head, scale, x, key.From(begin), T(0), scores);
        Multiply(false, true, n, keys, z.head, T(1), dy, value.From(begin), T(0), d);
        // The gradient of a weight that was dropped is zero; of the others, times their factor.
        if (dropout.on()) DropScores<T>(dropout, sequence, head, z.keys, block, d);
        SoftmaxRowsBackward(scores, d, block, sums + (sequence * z.heads + head) * z.queries + block.own, y, dy, z.head,
                            scale);
        Multiply(false, false, n, z.head, keys, T(1), d, key.From(begin), T(0), dx);
        Multiply(true, false, keys, z.head, n, T(1), d, x, add, dk.From(begin));
        if (dropout.on()) DropScores<T>(dropout, sequence, head, z.keys, block, scores);
        Multiply(true, false, keys, z.head, n, T(1), scores, dy, add, dv.From(begin));
        scratch.Write(dx, rows(d_queries), n);
      }
    }
    scratch.Write(dk, all_dk, z.seen);
    scratch.Write(dv, all_dv, z.seen);
    ZeroRows(all_dk.From(z.seen), z.keys - z.seen, z.head);
    ZeroRows(all_dv.From(z.seen), z.keys - z.seen, z.head);
  });
}

}  // namespace

void Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
            const at::Tensor& log_sums, const DropoutPlace& dropout, int64_t window,
            const std::vector<models::TokenRun>& runs) {
  const Sizes z = SizesOf(q, k, window, runs);
  Dispatch(q, [&]<typename T, typename N>(T, N) { AttendAs<T, N>(q, k, v, out, log_sums, dropout, z); });
}

void AttendBackward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                    const at::Tensor& log_sums, const at::Tensor& d_out, const at::Tensor& d_q, const at::Tensor& d_k,
                    const at::Tensor& d_v, const DropoutPlace& dropout, int64_t window,
                    const std::vector<models::TokenRun>& runs) {
  const Sizes z = SizesOf(q, k, window, runs);
  if (z.blocks.empty()) return;
  Dispatch(q, [&]<typename T, typename N>(T, N) {
    AttendBackwardAs<T, N>(q, k, v, out, log_sums, d_out, d_q, d_k, d_v, dropout, z);
  });
}

}  // namespace muster::units
