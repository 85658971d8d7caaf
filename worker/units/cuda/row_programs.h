// The arithmetic of the row operations (row_kernels.h), by the rules of program.h. Matrices are contiguous [rows,
// width] unless they have a stride.
#pragma once

#include "worker/units/cuda/program.h"

namespace muster::units::programs {

// ---- Layer norm (Ba et al. 2016) ----

inline constexpr double kNormEpsilon = 1e-5;

// Writes out = Norm(x) for one row, and the row's mean and 1 / standard deviation. The mean comes first: sums of
// squares would lose the digits of a row that is far from zero.
template <typename Block, typename T, typename N>
MUSTER_PROGRAM void NormRow(const Block& block, const T* x, const N* weight, const N* bias, int width, N* out,
                            T* statistics) {
  const T mean = SumOf<T, 1>(block, width, [&](int i, T* sum) { *sum += x[i]; }).at[0] / static_cast<T>(width);
  const T square = SumOf<T, 1>(block, width, [&](int i, T* sum) { *sum += (x[i] - mean) * (x[i] - mean); }).at[0];
  const T rstd = T(1) / std::sqrt(square / static_cast<T>(width) + static_cast<T>(kNormEpsilon));
  block.Each(width, [&](int i) { Put((x[i] - mean) * rstd * Wide(weight[i]) + Wide(bias[i]), out[i]); });
  block.Each(1, [&](int) {
    statistics[0] = mean;
    statistics[1] = rstd;
  });
}

template <typename T, typename N>
struct Norm {
  using Number = T;
  static constexpr const char* kName = "muster::Norm";
  static constexpr int kThreads = kRowThreads;
  const T* x;
  const N *weight, *bias;
  N* out;
  T* statistics;
  int64_t rows;
  int width;

  Grid grid() const { return {rows, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    NormRow(block, x + at.x * width, weight, bias, width, out + at.x * width, statistics + 2 * at.x);
  }
};

template <typename T, typename N>
struct AddAndNorm {
  using Number = T;
  static constexpr const char* kName = "muster::AddAndNorm";
  static constexpr int kThreads = kRowThreads;
  const T* x;
  const N *gemm, *gemm_bias, *weight, *bias;
  T* sum;  // may be gemm
  N* out;
  T* statistics;
  int64_t rows;
  int width;

  Grid grid() const { return {rows, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    const int64_t row = at.x * width;
    block.Each(width, [&](int i) { sum[row + i] = x[row + i] + (Wide(gemm[row + i]) + Wide(gemm_bias[i])); });
    NormRow(block, sum + row, weight, bias, width, out + row, statistics + 2 * at.x);
  }
};

template <typename T, typename N>
struct NormAgain {
  using Number = T;
  static constexpr const char* kName = "muster::NormAgain";
  static constexpr int kThreads = kRowThreads;
  const T *x, *statistics;
  const N *weight, *bias;
  N* out;
  int64_t rows;
  int width;

  Grid grid() const { return {rows, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    const int64_t row = at.x * width;
    const T mean = statistics[2 * at.x], rstd = statistics[2 * at.x + 1];
    const T* const from = x + row;
    N* const to = out + row;
    const auto body = [&](auto count, int i) {
      constexpr int kCount = decltype(count)::value;
      const auto xs = Load<kCount>(from + i);
      const auto ws = Load<kCount>(weight + i), bs = Load<kCount>(bias + i);
      Pack<N, kCount> all;
      for (int k = 0; k < kCount; ++k) Put((xs.at[k] - mean) * rstd * Wide(ws.at[k]) + Wide(bs.at[k]), all.at[k]);
      Store(all, to + i);
    };
    EachPack(block, width, body, from, weight, bias, to);
  }
};

// d_x += the gradient of Norm's input; those of its vectors are column sums (NormVectors).
template <typename T, typename N>
struct NormBackward {
  using Number = T;
  static constexpr const char* kName = "muster::NormBackward";
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
    const T mean = statistics[2 * at.x], rstd = statistics[2 * at.x + 1];
    const Sums<T, 2> sums = SumOf<T, 2>(block, width, [&](int i, T* sum) {
      const T dw = Wide(d[row + i]) * Wide(weight[i]);
      sum[0] += dw;
      sum[1] += dw * ((x[row + i] - mean) * rstd);
    });
    const T a = sums.at[0] / static_cast<T>(width), b = sums.at[1] / static_cast<T>(width);
    block.Each(width, [&](int i) {
      const T hat = (x[row + i] - mean) * rstd;
      d_x[row + i] += rstd * (Wide(d[row + i]) * Wide(weight[i]) - a - hat * b);
    });
  }
};

// ---- Elementwise ----

template <typename T, typename N>
struct AddGemm {
  using Number = T;
  static constexpr const char* kName = "muster::AddGemm";
  static constexpr int kThreads = kRowThreads;
  const T* x;
  const N *gemm, *bias;
  T* out;  // may be gemm
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
      const auto gs = Load<kCount>(added + i), bs = Load<kCount>(bias + i);
      Pack<T, kCount> all;
      for (int k = 0; k < kCount; ++k) all.at[k] = xs.at[k] + (Wide(gs.at[k]) + Wide(bs.at[k]));
      Store(all, to + i);
    };
    EachPack(block, width, body, from, added, bias, to);
  }
};

// gelu(v) = v sigmoid(2 u), u = sqrt(2 / pi) (v + 0.044715 v^3) (Hendrycks and Gimpel 2016), and its slope.
template <typename T>
struct GeluAt {
  T value, slope;
};
template <typename T>
MUSTER_PROGRAM GeluAt<T> Gelu(T v) {
  constexpr double kRoot = 0.7978845608028654, kCube = 0.044715;
  const T cube = static_cast<T>(kCube) * v * v, u = static_cast<T>(kRoot) * v * (1 + cube);
  const T s = T(1) / (T(1) + std::exp(-2 * u));
  return {v * s, s + v * s * (1 - s) * static_cast<T>(2 * kRoot) * (1 + 3 * cube)};
}

template <typename T, typename N>
struct AddAndGelu {
  using Number = T;
  static constexpr const char* kName = "muster::AddAndGelu";
  static constexpr int kThreads = kWideThreads;
  const N *x, *bias;
  N* out;
  int64_t rows;
  int width;

  Grid grid() const { return {rows, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    const N* const from = x + at.x * width;
    N* const to = out + at.x * width;
    const auto body = [&](auto count, int i) {
      constexpr int kCount = decltype(count)::value;
      const auto xs = Load<kCount>(from + i), bs = Load<kCount>(bias + i);
      Pack<N, kCount> all;
      for (int k = 0; k < kCount; ++k) Put(Gelu<T>(Wide(xs.at[k]) + Wide(bs.at[k])).value, all.at[k]);
      Store(all, to + i);
    };
    EachPack(block, width, body, from, bias, to);
  }
};

// ---- Column sums ----

// A tile's rows. Sums of a tile go to a scratch and are added up by ColumnTotals: no atomic additions, so the order of
// sums, and with it every bit, is the same each time.
inline constexpr int kTileRows = 32;
constexpr int64_t TilesOf(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

// partial[tile, k, column] = the sum over the tile's rows of what source.Add(element, row, column, sums) adds to
// sums[k]. A thread owns a column, and neighbors read neighboring columns.
template <typename Source>
struct ColumnTiles {
  using Number = typename Source::Number;
  static constexpr const char* kName = Source::kName;
  static constexpr int kThreads = kWideThreads, kSums = Source::kSums;
  Source source;
  Number* partial;
  int64_t rows;
  int width;

  Grid grid() const { return {TilesOf(rows), rows == 0 ? 0 : (width + kThreads - 1) / kThreads}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    const int first_column = static_cast<int>(at.y) * kThreads;
    const int columns = width - first_column < kThreads ? width - first_column : kThreads;
    const int64_t first = at.x * kTileRows, end = first + kTileRows < rows ? first + kTileRows : rows;
    block.Each(columns, [&](int i) {
      const int column = first_column + i;
      Number sums[kSums] = {};
      for (int64_t r = first; r < end; ++r) source.Add(r * width + column, r, column, sums);
      for (int k = 0; k < kSums; ++k) partial[(at.x * kSums + k) * width + column] = sums[k];
    });
  }
};

// d [rows, width] in either dtype.
template <typename T, typename D>
struct SumColumns {
  using Number = T;
  static constexpr const char* kName = "muster::AddColumnSums";
  static constexpr int kSums = 1;
  const D* d;
  MUSTER_PROGRAM void Add(int64_t at, int64_t, int, T* sums) const { sums[0] += Wide(d[at]); }
};

template <typename T, typename N>
struct NarrowAndSum {
  using Number = T;
  static constexpr const char* kName = "muster::NarrowAndSum";
  static constexpr int kSums = 1;
  const T* d;
  N* narrow;
  MUSTER_PROGRAM void Add(int64_t at, int64_t, int, T* sums) const {
    sums[0] += d[at];
    Put(d[at], narrow[at]);
  }
};

// Recomputes out = gelu(x + bias); d turns from the gradient of out into that of x, whose sums are the bias's.
template <typename T, typename N>
struct GeluBackward {
  using Number = T;
  static constexpr const char* kName = "muster::GeluBackward";
  static constexpr int kSums = 1;
  const N *x, *bias;
  N *out, *d;
  MUSTER_PROGRAM void Add(int64_t at, int64_t, int column, T* sums) const {
    const GeluAt<T> gelu = Gelu<T>(Wide(x[at]) + Wide(bias[column]));
    const T dv = Wide(d[at]) * gelu.slope;
    Put(gelu.value, out[at]);
    Put(dv, d[at]);
    sums[0] += dv;
  }
};

// The gradients of Norm's weight and bias.
template <typename T, typename N>
struct NormVectors {
  using Number = T;
  static constexpr const char* kName = "muster::NormVectors";
  static constexpr int kSums = 2;
  const N* d;
  const T *x, *statistics;
  MUSTER_PROGRAM void Add(int64_t at, int64_t row, int, T* sums) const {
    const T di = Wide(d[at]);
    sums[0] += di * ((x[at] - statistics[2 * row]) * statistics[2 * row + 1]);
    sums[1] += di;
  }
};

// totals[k][column] += the sum of `partial` over the tiles.
template <typename T, int kSums>
struct ColumnTotals {
  using Number = T;
  static constexpr const char* kName = "muster::ColumnTotals";
  static constexpr int kThreads = kWarp;
  const T* partial;  // [tiles, kSums, width]
  T* totals[kSums];
  int64_t rows;
  int width;

  Grid grid() const { return {rows == 0 ? 0 : width, kSums}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    const T sum = SumOf<T, 1>(block, static_cast<int>(TilesOf(rows)), [&](int tile, T* total) {
                    *total += partial[(tile * int64_t{kSums} + at.y) * width + at.x];
                  }).at[0];
    block.Each(1, [&](int) { totals[at.y][at.x] += sum; });
  }
};

// ---- Cross entropy ----

// The largest number so far, and the sum of exp(number - largest) (Milakov and Gimelshein 2018): one pass over a row.
template <typename T>
struct SoftmaxSum {
  T largest, sum;
};

// losses[row] = -log softmax(logits)[target]. With `scale` other than zero the logits become scale times their
// gradient.
template <typename T, typename N>
struct CrossEntropy {
  using Number = T;
  static constexpr const char* kName = "muster::CrossEntropy";
  static constexpr int kThreads = 512;
  N* logits;
  int64_t stride;
  const int64_t* targets;
  T* losses;
  T scale;
  const float* loss_scale;  // another factor, or null
  int64_t rows;
  int width;

  Grid grid() const { return {rows, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    N* const x = logits + at.x * stride;
    const int target = static_cast<int>(targets[at.x]);
    const T picked = Wide(x[target]);  // read by all before Reduce, which is a barrier; overwritten after it
    // Equal numbers are a case of their own: the difference of two that are -infinity is undefined.
    const SoftmaxSum<T> all = block.Reduce(
        width, SoftmaxSum<T>{static_cast<T>(-INFINITY), T(0)},
        [&](SoftmaxSum<T> s, int i) {
          const T v = Wide(x[i]);
          if (v > s.largest) return SoftmaxSum<T>{v, s.sum * std::exp(s.largest - v) + T(1)};
          return SoftmaxSum<T>{s.largest, s.sum + (v == s.largest ? T(1) : std::exp(v - s.largest))};
        },
        [](const SoftmaxSum<T>& a, const SoftmaxSum<T>& b) {
          if (a.largest == b.largest) return SoftmaxSum<T>{a.largest, a.sum + b.sum};
          const T top = a.largest > b.largest ? a.largest : b.largest;
          return SoftmaxSum<T>{top, a.sum * std::exp(a.largest - top) + b.sum * std::exp(b.largest - top)};
        });
    block.Each(1, [&](int) { losses[at.x] = std::log(all.sum) - (picked - all.largest); });
    if (scale == T(0)) return;
    const T whole = loss_scale == nullptr ? scale : scale * static_cast<T>(*loss_scale), factor = whole / all.sum;
    block.Each(width, [&](int i) {
      const T gradient = std::exp(Wide(x[i]) - all.largest) * factor;
      Put(i == target ? gradient - whole : gradient, x[i]);
    });
  }
};

// ---- Dropout (dropout.h) ----

// out = the factors of rows [first_row, first_row + rows) of a place, fp32. Which rows of a sample the tensor's are:
// DropoutRows, without zeros.
struct DropoutFactors {
  using Number = float;
  static constexpr const char* kName = "muster::DropoutFactors";
  static constexpr int kThreads = 128;
  float* out;
  uint64_t key;
  uint32_t step, place, least;  // the least word that is kept
  float scale;
  int64_t first_sample, first_element, tokens, first_row, rows;
  int width;
  int64_t run_begin, run, run_apart, sample_width;
  const int64_t* step_on_device;  // in place of `step`, or null

  Grid grid() const { return {rows, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    const uint32_t now = step_on_device == nullptr ? step : static_cast<uint32_t>(*step_on_device);
    const int64_t row = first_row + at.x, own = row % tokens;
    const int64_t in_sample = run_begin + (run == tokens ? own : own / run * run_apart + own % run);
    const int64_t first = first_element + in_sample * sample_width;
    const uint32_t sample = static_cast<uint32_t>(first_sample + row / tokens);
    block.Each(width, [&](int i) {
      const uint64_t element = static_cast<uint64_t>(first + i), of_four = element / 4;
      uint32_t c[4] = {static_cast<uint32_t>(of_four), sample + (static_cast<uint32_t>(of_four >> 32) << 20), now,
                       place};
      uint32_t low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
      for (int round = 0; round < 10; ++round) {
        const uint64_t one = uint64_t{0xd2511f53} * c[0], two = uint64_t{0xcd9e8d57} * c[2];
        c[0] = static_cast<uint32_t>(two >> 32) ^ c[1] ^ low;
        c[1] = static_cast<uint32_t>(two);
        c[2] = static_cast<uint32_t>(one >> 32) ^ c[3] ^ high;
        c[3] = static_cast<uint32_t>(one);
        low += 0x9e3779b9;
        high += 0xbb67ae85;
      }
      out[at.x * width + i] = c[element % 4] >= least ? scale : 0.0f;
    });
  }
};

// *total += the sum of the losses.
template <typename T>
struct LossTotal {
  using Number = T;
  static constexpr const char* kName = "muster::LossTotal";
  static constexpr int kThreads = 512;
  const T* losses;
  double* total;
  int64_t rows;

  Grid grid() const { return {rows == 0 ? 0 : 1, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place) const {
    const T sum = SumOf<T, 1>(block, static_cast<int>(rows), [&](int i, T* part) { *part += losses[i]; }).at[0];
    block.Each(1, [&](int) { *total += static_cast<double>(sum); });
  }
};

}  // namespace muster::units::programs
