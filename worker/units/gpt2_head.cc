#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "models/inventory.h"
#include "worker/units/gpt2.h"
#include "worker/units/row_kernels.h"

namespace muster::units {
namespace {

// A GPU needs more rows for a good product, and has the memory. In bf16 twice the rows take the same memory, and each
// piece's gradient of the embedding is made before it is added to that in fp32.
constexpr uint64_t kGpuPieces = 16, kNarrowPieces = 2;
// The logits have a multiple of so many columns: without it a vocabulary like 50,257 leaves tensor cores unused, and on
// a CPU, where no row but the first begins at a cache line, the product takes a third longer. What is more than the
// vocabulary is masked or left out; the embedding has no rows for it.
constexpr int64_t kAlignedLogits = 64;

// Final norm, logits by the tied embedding, and cross entropy. The logits exist once, a piece of the rows at a time:
// the backward computes them, takes the loss from them, lets them become their own gradient and multiplies with that.
// So training has nothing to do forward, and keeps the input only. With bf16 parameters the loss is still computed from
// fp32: of bf16 logits a row at a time on a CPU, of wider GEMMs on a GPU.
class Head final : public UnitModule {
 public:
  Head(std::vector<Parameter> p, uint64_t piece_rows, bool portable)
      : weight_(p[0]),
        bias_(p[1]),
        wte_(p[2]),
        narrow_(wte_.value.scalar_type() == at::kBFloat16),
        portable_(portable),
        piece_rows_(piece_rows * (!wte_.value.is_cpu() ? kGpuPieces
                                  : narrow_            ? kNarrowPieces
                                                       : 1)) {}

  Activations Forward(const Context& context, const Activations& in, Saved& saved) override {
    const int64_t width = in[0].size(2);
    if (!context.targets.defined()) {
      const at::Tensor last = in[0].select(1, in[0].size(1) - 1).contiguous();
      return {at::mm(Normalise(last).normed, wte_.value.t())};
    }
    if (context.mode == Mode::kTrain || context.mode == Mode::kRecompute) {
      saved.tensors = {in[0]};
      return {};
    }
    EachPiece(context, in[0].reshape({-1, width}), /*scale=*/0, [](const RowBlock&) {});
    return {};
  }

  Activations Backward(const Context& context, Saved saved, const Activations&) override {
    const int64_t width = saved.tensors[0].size(2);
    // Of pieces the CPU's own code adds to it.
    const at::Tensor x = saved.tensors[0].reshape({-1, width}), dx = portable_ ? at::empty_like(x) : at::zeros_like(x);
    EachPiece(context, x, context.loss_scale, [&](const RowBlock& piece) {
      const at::Tensor &d = piece.d, &normed = piece.norm.normed;
      AddTableGradient(piece);
      at::Tensor d_normed = normed;
      at::mm_out(d_normed, d, wte_.value);
      if (piece.factor != 1) d_normed.mul_(piece.factor);
      const at::Tensor rows = dx.narrow(0, piece.first, piece.x.size(0));
      if (!portable_) {
        return NormBackward(d_normed, piece.x, piece.norm.statistics, weight_.value, rows, weight_.gradient,
                            bias_.gradient);
      }
      const auto [weight, bias] = Vectors();
      const auto [d_piece, d_weight, d_bias] = at::native_layer_norm_backward(
          d_normed, piece.x, {width}, piece.norm.mean, piece.norm.rstd, weight, bias, {true, true, true});
      rows.copy_(d_piece);
      weight_.gradient.add_(d_weight);
      bias_.gradient.add_(d_bias);
    });
    return {dx.view(saved.tensors[0].sizes())};
  }

 private:
  struct Normed {
    at::Tensor normed, mean, rstd;
    at::Tensor statistics;  // in place of those two, by the CPU's own code
  };
  struct RowBlock {
    int64_t first;  // row
    at::Tensor x;
    Normed norm;
    at::Tensor d;       // the logits' gradient, when it was asked for,
    double factor = 1;  // but for this
  };

  // On a CPU the norm keeps its statistics in its parameters' dtype: too few digits in bf16.
  std::pair<at::Tensor, at::Tensor> Vectors() const {
    if (!narrow_ || !weight_.value.is_cpu()) return {weight_.value, bias_.value};
    return {weight_.value.to(at::kFloat), bias_.value.to(at::kFloat)};
  }

  Normed Normalise(const at::Tensor& x) const {
    if (!portable_) {
      const Normed out{at::empty(x.sizes(), wte_.value.options()), {}, {}, at::empty({x.size(0), 2}, x.options())};
      Norm(x, weight_.value, bias_.value, out.normed, out.statistics);
      return out;
    }
    const auto [weight, bias] = Vectors();
    auto [normed, mean, rstd] = at::native_layer_norm(x, {x.size(1)}, weight, bias, kGpt2Epsilon);
    return {normed, mean, rstd, {}};
  }

  void AddTableGradient(const RowBlock& piece) const {
    const at::Tensor turned = piece.d.t();
    if (!narrow_) {
      wte_.gradient.addmm_(turned, piece.norm.normed, /*beta=*/1, /*alpha=*/piece.factor);
    } else if (portable_) {
      wte_.gradient.add_(at::mm(turned, piece.norm.normed), piece.factor);
    } else {
      AddTo(at::mm(turned, piece.norm.normed), wte_.gradient);
    }
  }

  // Adds each piece's loss, and calls `body` with the logits' gradient if `scale` is not zero.
  template <typename F>
  void EachPiece(const Context& context, const at::Tensor& x, double scale, const F& body) const {
    const int64_t rows = x.size(0), vocabulary = wte_.value.size(0);
    const int64_t most = static_cast<int64_t>(models::PieceRows(static_cast<uint64_t>(rows), piece_rows_));
    const int64_t columns = (vocabulary + kAlignedLogits - 1) / kAlignedLogits * kAlignedLogits;
    const at::Tensor targets = context.targets.reshape({-1}), padded = at::empty({most, columns}, wte_.value.options());
    at::Tensor wide = padded;  // the logits in fp32, where `padded` is to be their gradient
    if (portable_ && narrow_) wide = at::empty({most, columns}, x.options().dtype(at::kFloat));
    for (int64_t first = 0; first < rows; first += most) {
      const int64_t n = std::min(most, rows - first);
      const at::Tensor d = padded.narrow(0, 0, n);
      RowBlock piece{.first = first, .x = x.narrow(0, first, n), .norm = {}, .d = d.narrow(1, 0, vocabulary)};
      piece.norm = Normalise(piece.x);
      const at::Tensor answers = targets.narrow(0, first, n), logits = wide.narrow(0, 0, n);
      Multiply(logits.narrow(1, 0, vocabulary), piece.norm.normed);
      if (portable_) {
        logits.narrow(1, vocabulary, columns - vocabulary).fill_(-std::numeric_limits<double>::infinity());
        AddLossByOperators(logits, answers, scale != 0, d, context.loss_sum);
        piece.factor = scale;
      } else {
        *context.loss_sum.mutable_data_ptr<double>() += CrossEntropy(piece.d, answers, scale);
      }
      body(piece);
    }
  }

  // logits = normed wte^T, without rounding to bf16 between where that can be.
  void Multiply(at::Tensor logits, const at::Tensor& normed) const {
    const at::Tensor turned = wte_.value.t();
    if (logits.scalar_type() == normed.scalar_type()) {
      at::mm_out(logits, normed, turned);
    } else if (logits.is_cpu()) {  // LibTorch has the wider product on GPUs only
      logits.copy_(at::mm(normed, turned));
    } else {
      at::mm_out(logits, normed, turned, at::kFloat);
    }
  }

  // sum += the loss of these rows. The logits become log-probabilities, and `d`, which may be they, their gradient.
  static void AddLossByOperators(at::Tensor logits, const at::Tensor& targets, bool gradient, at::Tensor d,
                                 at::Tensor sum) {
    at::_log_softmax_out(logits, logits, 1, /*half_to_float=*/false);
    // Where each row's target stands, in one dimension, because LibTorch is deterministic there on a GPU.
    const at::Tensor picks = at::arange(targets.size(0), targets.options()).mul_(logits.size(1)).add_(targets);
    sum.sub_(logits.view(-1).index_select(0, picks).sum(at::kDouble));
    if (!gradient) return;
    at::exp_out(d, logits);
    d.view(-1).index_add_(0, picks, at::full({targets.size(0)}, -1, d.options()));
  }

  const Parameter weight_, bias_, wte_;
  const bool narrow_;    // parameters and activations in bf16
  const bool portable_;  // by LibTorch's operators alone
  const uint64_t piece_rows_;
};

}  // namespace

std::unique_ptr<UnitModule> MakeGpt2Head(std::vector<Parameter> parameters, uint64_t piece_rows, bool portable) {
  return std::make_unique<Head>(std::move(parameters), piece_rows, portable);
}

}  // namespace muster::units
