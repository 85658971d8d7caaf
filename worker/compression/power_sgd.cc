#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <optional>
#include <random>
#include <utility>

#include "worker/compression/compressed_sum.h"

namespace muster::compression {
namespace {

// Vogels et al. 2019, "PowerSGD", algorithms 1 and 2: one step of subspace iteration from the last step's Q. A matrix
// travels as P = M Q, summed and orthogonalized, and Q = M^T P, summed. The result, P Q^T, is a sum over ranks.
class PowerSgdSum final : public CompressedSum {
 public:
  explicit PowerSgdSum(const Options& options)
      : options_(options),
        residual_(at::zeros({options.elements}, at::TensorOptions(at::kFloat).device(options.device))) {
    int64_t first = 0, second = 0, at = 0;
    // What lies between matrices, padding included, travels as it is.
    const auto exact = [&](int64_t end) {
      if (end > at) exact_.push_back({at, end - at, first}), first += end - at;
    };
    for (size_t part = 0; part < options.parts.size(); ++part) {
      const auto thin = strategies::ThinMatricesOf(options.parts[part], options.compression.power_sgd().rank());
      if (!thin.has_value()) continue;
      exact(options.parts[part].begin);
      matrices_.push_back({.part = static_cast<int>(part), .begin = options.parts[part].begin, .size = *thin});
      at = options.parts[part].begin + thin->rows * thin->columns;
    }
    exact(options.elements);
    for (Matrix& matrix : matrices_) {
      matrix.first = first, matrix.second = second;
      first += matrix.size.rows * matrix.size.rank, second += matrix.size.columns * matrix.size.rank;
      matrix.q = at::zeros({matrix.size.columns, matrix.size.rank}, residual_.options());
      matrix.drawn = Drawn(matrix);
    }
    first_ = at::empty({first}, residual_.options()), second_ = at::empty({second}, residual_.options());
  }

  Works Begin(const at::Tensor& gradients, uint64_t) override {
    gradients_ = gradients;
    gradients.add_(residual_);
    for (const Exact& exact : exact_) {
      first_.narrow(0, exact.sent, exact.length).copy_(gradients.narrow(0, exact.begin, exact.length));
    }
    for (const Matrix& matrix : matrices_) {
      at::Tensor p = POf(matrix);
      // Without them a column of zeros would stay one: it is at first, and after a step whose matrix had a lower rank.
      const at::Tensor lost = matrix.q.eq(0).all(0, /*keepdim=*/true);
      at::matmul_out(p, Of(gradients, matrix), at::where(lost, matrix.drawn, matrix.q));
    }
    return Sum(first_);
  }

  Works Continue() override {
    for (const Matrix& matrix : matrices_) {
      at::Tensor p = POf(matrix), q = QOf(matrix);
      Orthogonalize(p);
      at::matmul_out(q, Of(gradients_, matrix).t(), p);
    }
    return matrices_.empty() ? Works() : Sum(second_);
  }

  void End() override {
    const at::Tensor finite = first_.isfinite().all().logical_and(second_.isfinite().all());
    const at::Tensor bad = finite.logical_not();
    const double ranks = options_.group->size();
    for (const Exact& exact : exact_) {
      gradients_.narrow(0, exact.begin, exact.length).copy_(first_.narrow(0, exact.sent, exact.length));
    }
    // Nothing then changes the residual. In place, since a matrix may be the largest tensor of the model.
    first_.masked_fill_(bad, 0), second_.masked_fill_(bad, 0);
    for (Matrix& matrix : matrices_) {
      at::Tensor values = Of(gradients_, matrix), kept = Of(residual_, matrix);
      at::where_out(kept, finite, values, kept);
      at::matmul_out(values, POf(matrix), QOf(matrix).t());
      kept.sub_(values, 1 / ranks);
      values.masked_fill_(bad, std::numeric_limits<double>::quiet_NaN());
      at::where_out(matrix.q, finite, QOf(matrix), matrix.q);
    }
  }

  std::vector<StateTensor> State() override {
    std::vector<StateTensor> state = {{"residual", residual_}};
    for (const Matrix& matrix : matrices_) state.push_back({"power_sgd_q", matrix.q, matrix.part});
    return state;
  }

 private:
  struct Exact {
    int64_t begin, length, sent;  // sent: in first_
  };
  struct Matrix {
    int part;
    int64_t begin;
    strategies::ThinMatrices size;
    int64_t first = 0, second = 0;  // in first_ and second_
    // [columns, rank], equal on all ranks: the last step's, and random columns in place of those that are zeros.
    at::Tensor q = {}, drawn = {};
  };

  at::Tensor Of(const at::Tensor& flat, const Matrix& matrix) const {
    return flat.narrow(0, matrix.begin, matrix.size.rows * matrix.size.columns)
        .view({matrix.size.rows, matrix.size.columns});
  }
  at::Tensor POf(const Matrix& matrix) const {
    return first_.narrow(0, matrix.first, matrix.size.rows * matrix.size.rank)
        .view({matrix.size.rows, matrix.size.rank});
  }
  at::Tensor QOf(const Matrix& matrix) const {
    return second_.narrow(0, matrix.second, matrix.size.columns * matrix.size.rank)
        .view({matrix.size.columns, matrix.size.rank});
  }
  Works Sum(const at::Tensor& values) const {
    Works works;
    works.push_back(options_.group->AllReduce(values));
    return works;
  }

  // Each rank draws the same numbers, in each run of the job.
  at::Tensor Drawn(const Matrix& matrix) const {
    std::seed_seq seed{static_cast<uint32_t>(options_.seed), static_cast<uint32_t>(options_.seed >> 32),
                       static_cast<uint32_t>(matrix.begin), static_cast<uint32_t>(matrix.part)};
    std::mt19937 random(seed);
    const at::Tensor drawn = at::empty(matrix.q.sizes(), at::kFloat);
    float* const values = drawn.mutable_data_ptr<float>();
    // A sum of uniform numbers: which distribution it is does not matter, and the library's differ.
    for (int64_t i = 0; i < drawn.numel(); ++i) {
      double sum = -2;
      for (int k = 0; k < 4; ++k) sum += random() * 0x1p-32;
      values[i] = static_cast<float>(sum);
    }
    return drawn.to(options_.device);
  }

  // The columns, by modified Gram-Schmidt. One that depends on those before it becomes nothing.
  static void Orthogonalize(at::Tensor& p) {
    for (int64_t c = 0; c < p.size(1); ++c) {
      const at::Tensor column = p.select(1, c);
      const at::Tensor before = column.norm();
      for (int64_t b = 0; b < c; ++b) {
        const at::Tensor other = p.select(1, b);
        column.sub_(other.mul(other.dot(column)));
      }
      const at::Tensor norm = column.norm();
      const at::Tensor depends = norm.le(before.mul(1e-5));  // false for NaN
      column.copy_(at::where(depends, 0.0, column.div(norm)));
    }
  }

  const Options options_;
  const at::Tensor residual_;
  std::vector<Exact> exact_;
  std::vector<Matrix> matrices_;
  at::Tensor first_, second_, gradients_;
};

}  // namespace

std::unique_ptr<CompressedSum> MakePowerSgdSum(const Options& options) {
  return std::make_unique<PowerSgdSum>(options);
}

}  // namespace muster::compression
