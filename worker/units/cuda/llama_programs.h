// The arithmetic of a Llama block's row operations (llama_rows.h), by the rules of program.h.
#pragma once

#include "worker/units/cuda/row_programs.h"

namespace muster::units::programs {

// ---- RMSNorm (Zhang and Sennrich 2019) ----

// Writes out = x rstd weight for one row, and rstd = 1 / sqrt(mean(x^2) + epsilon). out may be x.
template <typename T, typename Block, typename X, typename N>
MUSTER_PROGRAM void RmsNormRow(const Block& block, const X* x, const N* weight, T epsilon, int width, N* out,
                               T* statistic) {
  const T square = SumOf<T, 1>(block, width, [&](int i, T* sum) { *sum += Wide(x[i]) * Wide(x[i]); }).at[0];
  const T rstd = T(1) / std::sqrt(square / static_cast<T>(width) + epsilon);
  block.Each(width, [&](int i) { Put(Wide(x[i]) * rstd * Wide(weight[i]), out[i]); });
  block.Each(1, [&](int) { *statistic = rstd; });
}

// For one row: the mean of x_hat times its gradient, which every gradient of x needs.
template <typename T, typename Block, typename X, typename N>
MUSTER_PROGRAM T RmsNormMean(const Block& block, const N* d, const X* x, T rstd, const N* weight, int width) {
  return SumOf<T, 1>(block, width, [&](int i, T* sum) { *sum += Wide(d[i]) * (Wide(x[i]) * rstd) * Wide(weight[i]); })
             .at[0] /
         static_cast<T>(width);
}

// The gradient of one x, given RmsNormMean.
template <typename T, typename X, typename N>
MUSTER_PROGRAM T RmsNormSlope(N d, X x, T rstd, N weight, T mean) {
  return rstd * (Wide(d) * Wide(weight) - Wide(x) * rstd * mean);
}

template <typename T, typename N>
struct RmsNorm {
  using Number = T;
  static constexpr const char* kName = "muster::RmsNorm";
  static constexpr int kThreads = kRowThreads;
  const T* x;
  const N* weight;
  T epsilon;
  N* out;
  T* statistics;
  int64_t rows;
  int width;

  Grid grid() const { return {rows, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    const int64_t row = at.x * width;
    RmsNormRow(block, x + row, weight, epsilon, width, out + row, statistics + at.x);
  }
};

template <typename T, typename N>
struct AddAndRmsNorm {
  using Number = T;
  static constexpr const char* kName = "muster::AddAndRmsNorm";
  static constexpr int kThreads = kRowThreads;
  const T* x;
  const N *gemm, *weight;
  T epsilon;
  T* sum;  // may be gemm
  N* out;
  T* statistics;
  int64_t rows;
  int width;

  Grid grid() const { return {rows, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    const int64_t row = at.x * width;
    block.Each(width, [&](int i) { sum[row + i] = x[row + i] + Wide(gemm[row + i]); });
    RmsNormRow(block, sum + row, weight, epsilon, width, out + row, statistics + at.x);
  }
};

template <typename T, typename N>
struct RmsNormAgain {
  using Number = T;
  static constexpr const char* kName = "muster::RmsNormAgain";
  static constexpr int kThreads = kRowThreads;
  const T *x, *statistics;
  const N* weight;
  N* out;
  int64_t rows;
  int width;

  Grid grid() const { return {rows, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    const int64_t row = at.x * width;
    const T rstd = statistics[at.x];
    const T* const from = x + row;
    N* const to = out + row;
    const auto body = [&](auto count, int i) {
      constexpr int kCount = decltype(count)::value;
      const auto xs = Load<kCount>(from + i);
      const auto ws = Load<kCount>(weight + i);
      Pack<N, kCount> all;
      for (int k = 0; k < kCount; ++k) Put(xs.at[k] * rstd * Wide(ws.at[k]), all.at[k]);
      Store(all, to + i);
    };
    EachPack(block, width, body, from, weight, to);
  }
};

// d_x += the gradient of RmsNorm's input; that of its weight is a column sum (RmsNormVector).
template <typename T, typename N>
struct RmsNormBackward {
  using Number = T;
  static constexpr const char* kName = "muster::RmsNormBackward";
  static constexpr int kThreads = kRowThreads;
  const N* d;
  const T *x, *statistics;
  const N* weight;
  T* d_x;
  int64_t rows;
  int width;

  Grid grid() const { return {rows, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    const int64_t row = at.x * width;
    const T rstd = statistics[at.x], mean = RmsNormMean(block, d + row, x + row, rstd, weight, width);
    block.Each(width, [&](int i) { d_x[row + i] += RmsNormSlope(d[row + i], x[row + i], rstd, weight[i], mean); });
  }
};

// The gradient of RmsNorm's weight.
template <typename T, typename N>
struct RmsNormVector {
  using Number = T;
  static constexpr const char* kName = "muster::RmsNormVector";
  static constexpr int kSums = 1;
  const N* d;
  const T *x, *statistics;
  MUSTER_PROGRAM void Add(int64_t at, int64_t row, int, T* sums) const {
    sums[0] += Wide(d[at]) * (x[at] * statistics[row]);
  }
};

// ---- Heads ----

// [rows, heads, width of a head], with rows `stride` apart.
template <typename N>
struct Heads {
  N* data;
  int64_t stride;
  int heads, width;

  MUSTER_PROGRAM N* At(int64_t row, int64_t head) const { return data + row * stride + head * width; }
};

// RmsNorm of each head, by a warp: heads are narrow.
template <typename T, typename N>
struct HeadNorm {
  using Number = T;
  static constexpr const char* kName = "muster::HeadNorm";
  static constexpr int kThreads = kWarp;
  Heads<N> x;
  const N* weight;
  T epsilon;
  Heads<N> out;  // may be x
  T* statistics;
  int64_t rows;

  Grid grid() const { return {rows * x.heads, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    const int64_t row = at.x / x.heads, head = at.x % x.heads;
    RmsNormRow(block, x.At(row, head), weight, epsilon, x.width, out.At(row, head), statistics + at.x);
  }
};

// d turns from the gradient of HeadNorm's result into that of its input.
template <typename T, typename N>
struct HeadNormBackward {
  using Number = T;
  static constexpr const char* kName = "muster::HeadNormBackward";
  static constexpr int kThreads = kWarp;
  Heads<N> d, x;
  const T* statistics;
  const N* weight;
  int64_t rows;

  Grid grid() const { return {rows * x.heads, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    N* const to = d.At(at.x / x.heads, at.x % x.heads);
    const N* const from = x.At(at.x / x.heads, at.x % x.heads);
    const T rstd = statistics[at.x], mean = RmsNormMean(block, to, from, rstd, weight, x.width);
    block.Each(x.width, [&](int i) { Put(RmsNormSlope(to[i], from[i], rstd, weight[i], mean), to[i]); });
  }
};

// The gradient of HeadNorm's weight: a row is a head.
template <typename T, typename N>
struct HeadNormVector {
  using Number = T;
  static constexpr const char* kName = "muster::HeadNormVector";
  static constexpr int kSums = 1;
  Heads<N> d, x;
  const T* statistics;
  MUSTER_PROGRAM void Add(int64_t, int64_t item, int column, T* sums) const {
    const int64_t row = item / x.heads, head = item % x.heads;
    sums[0] += Wide(d.At(row, head)[column]) * (Wide(x.At(row, head)[column]) * statistics[item]);
  }
};

// Turns each pair (i, i + width / 2) of each head by the angle of its row's position (Su et al. 2021).
template <typename T, typename N>
struct Rope {
  using Number = T;
  static constexpr const char* kName = "muster::Rope";
  static constexpr int kThreads = kRowThreads;
  Heads<N> x;
  const T *cosine, *sine;  // [positions, width / 2]
  T direction;             // 1, or -1 to turn back
  int64_t tokens, position, rows;

  Grid grid() const { return {rows, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    const int half = x.width / 2;
    const int64_t angles = (position + at.x % tokens) * half;
    block.Each(x.heads * half, [&](int i) {
      N* const a = x.At(at.x, i / half) + i % half;
      const T x1 = Wide(a[0]), x2 = Wide(a[half]);
      const T c = cosine[angles + i % half], s = sine[angles + i % half] * direction;
      Put(x1 * c - x2 * s, a[0]);
      Put(x2 * c + x1 * s, a[half]);
    });
  }
};

// ---- Elementwise ----

template <typename T, typename N>
struct Add {
  using Number = T;
  static constexpr const char* kName = "muster::Add";
  static constexpr int kThreads = kRowThreads;
  const T* x;
  const N* gemm;
  T* out;  // may be x or gemm
  int64_t rows;
  int width;

  Grid grid() const { return {rows, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    const T* const from = x + at.x * width;
    const N* const added = gemm + at.x * width;
    T* const to = out + at.x * width;
    const auto body = [&](auto count, int i) {
      constexpr int kCount = decltype(count)::value;
      const auto xs = Load<kCount>(from + i);
      const auto gs = Load<kCount>(added + i);
      Pack<T, kCount> all;
      for (int k = 0; k < kCount; ++k) all.at[k] = xs.at[k] + Wide(gs.at[k]);
      Store(all, to + i);
    };
    EachPack(block, width, body, from, added, to);
  }
};

// silu(gate) up (Shazeer 2020), where a row has the gate in its first half.
template <typename T, typename N>
struct SwiGlu {
  using Number = T;
  static constexpr const char* kName = "muster::SwiGlu";
  static constexpr int kThreads = kWideThreads;
  const N* gate_up;
  N* out;
  int64_t rows;
  int width;

  Grid grid() const { return {rows, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    const N *const gate = gate_up + 2 * at.x * width, *const up = gate + width;
    N* const to = out + at.x * width;
    const auto body = [&](auto count, int i) {
      constexpr int kCount = decltype(count)::value;
      const auto gates = Load<kCount>(gate + i), ups = Load<kCount>(up + i);
      Pack<N, kCount> all;
      for (int k = 0; k < kCount; ++k) {
        const T g = Wide(gates.at[k]), s = T(1) / (T(1) + std::exp(-g));
        Put(g * s * Wide(ups.at[k]), all.at[k]);
      }
      Store(all, to + i);
    };
    EachPack(block, width, body, gate, up, to);
  }
};

// Recomputes out; d_gate_up becomes the gradient of gate_up, from d, that of out.
template <typename T, typename N>
struct SwiGluBackward {
  using Number = T;
  static constexpr const char* kName = "muster::SwiGluBackward";
  static constexpr int kThreads = kWideThreads;
  const N *gate_up, *d;
  N *out, *d_gate_up;  // d_gate_up may be gate_up
  int64_t rows;
  int width;

  Grid grid() const { return {rows, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    const int64_t row = at.x * width;
    const N *const gate = gate_up + 2 * row, *const up = gate + width;
    N *const d_gate = d_gate_up + 2 * row, *const d_up = d_gate + width, *const to = out + row;
    const N* const given = d + row;
    const auto body = [&](auto count, int i) {
      constexpr int kCount = decltype(count)::value;
      const auto gates = Load<kCount>(gate + i), ups = Load<kCount>(up + i), ds = Load<kCount>(given + i);
      Pack<N, kCount> all, d_gates, d_ups;
      for (int k = 0; k < kCount; ++k) {
        const T g = Wide(gates.at[k]), u = Wide(ups.at[k]), di = Wide(ds.at[k]);
        const T s = T(1) / (T(1) + std::exp(-g)), silu = g * s;
        Put(silu * u, all.at[k]);
        Put(di * u * (s + silu * (1 - s)), d_gates.at[k]);
        Put(di * silu, d_ups.at[k]);
      }
      Store(all, to + i);
      Store(d_gates, d_gate + i);
      Store(d_ups, d_up + i);
    };
    EachPack(block, width, body, gate, up, given, to, d_gate, d_up);
  }
};

}  // namespace muster::units::programs
