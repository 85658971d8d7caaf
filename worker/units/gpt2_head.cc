#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include <algorithm>

#include "models/inventory.h"
#include "worker/units/gpt2.h"
#include "worker/units/row_kernels.h"

namespace muster::units {
namespace {

constexpr double kEpsilon = 1e-5;
constexpr uint64_t kGpuPieces = 32;  // a GPU needs more rows for a good product, and has the memory

// Final norm, logits by the tied embedding, and cross entropy. The logits exist once, a piece of the rows at a time:
// the backward computes them, takes the loss from them, lets them become their own gradient and multiplies with that.
// So training has nothing to do forward, and keeps the input only.
class Head final : public UnitModule {
 public:
  Head(std::vector<Parameter> p, uint64_t piece_rows) : weight_(p[0]), bias_(p[1]), wte_(p[2]) {
    piece_rows_ = wte_.value.is_cpu() ? piece_rows : piece_rows * kGpuPieces;
  }

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
    EachPiece(context, in[0].reshape({-1, width}),
              [&](const Piece& piece) { AddLoss(piece.logits, piece.targets, 0, context.loss_sum); });
    return {};
  }

  Activations Backward(const Context& context, Saved saved, const Activations&) override {
    const int64_t width = saved.tensors[0].size(2);
    const at::Tensor x = saved.tensors[0].reshape({-1, width}), dx = at::empty_like(x);
    EachPiece(context, x, [&](const Piece& piece) {
      const at::Tensor& d = piece.logits;
      AddLoss(d, piece.targets, context.loss_scale, context.loss_sum);
      wte_.gradient.addmm_(d.t(), piece.norm.normed);
      at::Tensor d_normed = piece.norm.normed;
      at::mm_out(d_normed, d, wte_.value);
      const auto [d_piece, d_weight, d_bias] = at::native_layer_norm_backward(
          d_normed, piece.x, {width}, piece.norm.mean, piece.norm.rstd, weight_.value, bias_.value, {true, true, true});
      dx.narrow(0, piece.first, piece.x.size(0)).copy_(d_piece);
      weight_.gradient.add_(d_weight);
      bias_.gradient.add_(d_bias);
    });
    return {dx.view(saved.tensors[0].sizes())};
  }

 private:
  struct Normed {
    at::Tensor normed, mean, rstd;
  };
  struct Piece {
    int64_t first;  // row
    at::Tensor x, targets, logits;
    Normed norm;
  };

  Normed Normalise(const at::Tensor& x) const {
    auto [normed, mean, rstd] = at::native_layer_norm(x, {x.size(1)}, weight_.value, bias_.value, kEpsilon);
    return {normed, mean, rstd};
  }

  template <typename F>
  void EachPiece(const Context& context, const at::Tensor& x, const F& body) const {
    const int64_t rows = x.size(0);
    const int64_t most = static_cast<int64_t>(models::PieceRows(static_cast<uint64_t>(rows), piece_rows_));
    const at::Tensor targets = context.targets.reshape({-1});
    const at::Tensor logits = at::empty({most, wte_.value.size(0)}, x.options());
    for (int64_t first = 0; first < rows; first += most) {
      const int64_t n = std::min(most, rows - first);
      Piece piece{first, x.narrow(0, first, n), targets.narrow(0, first, n), logits.narrow(0, 0, n), {}};
      piece.norm = Normalise(piece.x);
      at::mm_out(piece.logits, piece.norm.normed, wte_.value.t());
      body(piece);
    }
  }

  // sum += the loss of these rows. With `scale` other than zero the logits become scale times their gradient.
  static void AddLoss(at::Tensor logits, const at::Tensor& targets, double scale, at::Tensor sum) {
    if (logits.is_cpu()) {
      *sum.mutable_data_ptr<double>() += CrossEntropy(logits, targets, scale);
      return;
    }
    const int64_t vocabulary = logits.size(1);
    at::_log_softmax_out(logits, logits, 1, /*half_to_float=*/false);
    // Where each row's target stands, in one dimension, because LibTorch is deterministic there on a GPU.
    const at::Tensor picks = at::arange(targets.size(0), targets.options()).mul_(vocabulary).add_(targets);
    sum.sub_(logits.view(-1).index_select(0, picks).sum());
    if (scale == 0) return;
    at::exp_(logits).view(-1).index_add_(0, picks, at::full({targets.size(0)}, -1, logits.options()));
    logits.mul_(scale);
  }

  const Parameter weight_, bias_, wte_;
  uint64_t piece_rows_ = 0;
};

}  // namespace

std::unique_ptr<UnitModule> MakeGpt2Head(std::vector<Parameter> parameters, uint64_t piece_rows) {
  return std::make_unique<Head>(std::move(parameters), piece_rows);
}

}  // namespace muster::units
