#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "models/inventory.h"
#include "worker/units/gemm.h"
#include "worker/units/language.h"
#include "worker/units/llama_rows.h"
#include "worker/units/row_kernels.h"
#include "worker/units/tensor_rows.h"

namespace muster::units {
namespace {

// A head whose logits' columns are divided among ranks (Shoeybi et al. 2019, section 3). In each piece of rows each
// rank computes the logits of its part of the vocabulary; the ranks exchange three numbers a row, from which each gets
// the loss and the gradient of its own logits. The norm's output of all rows is kept for that; piece by piece it
// becomes its own gradient, which is summed over the ranks at the end. In any dtype the pieces are the inventory's,
// since it declares a collective for each.
class VocabularyHead final : public UnitModule {
 public:
  VocabularyHead(FinalNorm norm, Parameter table, uint64_t piece_rows, const LanguageShare& share,
                 const UnitOptions& options)
      : norm_(std::move(norm)),
        wte_(std::move(table)),
        share_(share),
        narrow_(IsNarrow(wte_.value)),
        rms_(!norm_.bias.value.defined()),
        gemms_(options.bf16_gemms, options.fp32_gemms),
        rows_(options.rows),
        piece_rows_(piece_rows) {}

  Activations Forward(const Context& context, const Activations& in, Saved& saved) override {
    const TensorRows ranks(context, share_.sequence_parallel);
    const int64_t width = in[0].size(2);
    if (!context.targets().defined()) {
      const at::Tensor all = ranks.Whole(in[0].reshape({-1, width})).view({in[0].size(0), -1, width});
      return {LastLogits(ranks, all.select(1, all.size(1) - 1).contiguous())};
    }
    if (context.mode == Mode::kTrain || context.mode == Mode::kRecompute) {
      saved.tensors = {in[0]};
      return {};
    }
    const at::Tensor all = ranks.Whole(Normalise(in[0].reshape({-1, width}).contiguous()).first);
    EachPiece(context, ranks, all, /*scale=*/0, [](const at::Tensor&, const at::Tensor&) {});
    return {};
  }

  Activations Backward(const Context& context, Saved saved, const Activations&) override {
    const TensorRows ranks(context, share_.sequence_parallel);
    const at::Tensor x = saved.tensors[0].reshape({-1, saved.tensors[0].size(2)}).contiguous();
    auto [normed, statistics] = Normalise(x);
    const at::Tensor all = ranks.Whole(normed);
    normed = at::Tensor();
    EachPiece(context, ranks, all, context.loss_scale, [&](const at::Tensor& piece, const at::Tensor& padded) {
      const at::Tensor d = padded.narrow(1, 0, wte_.value.size(0));
      if (wte_.gradient.defined()) gemms_.AddTo(wte_.gradient, d.t(), piece);
      gemms_.ComputeOfPadded(padded, wte_.value, piece);
    });
    const at::Tensor d_normed = ranks.Summed(all), dx = at::zeros_like(x);
    std::vector<at::Tensor> vectors = {norm_.weight.gradient};
    std::vector<int> partial = {0};
    if (!rms_) vectors.push_back(norm_.bias.gradient), partial.push_back(1);
    const VectorSinks sinks(ranks, std::move(vectors), ranks.divided() ? partial : std::vector<int>());
    if (rms_) {
      RmsNormBackward(d_normed, x, statistics.view(-1), norm_.weight.value, dx, sinks[0], rows_);
    } else {
      NormBackward(d_normed, x, statistics, norm_.weight.value, dx, sinks[0], sinks[1], rows_);
    }
    sinks.Finish();
    return {dx.view(saved.tensors[0].sizes())};
  }

 private:
  // What the norm gives, and its statistics.
  std::pair<at::Tensor, at::Tensor> Normalise(const at::Tensor& x) const {
    const at::Tensor out = at::empty(x.sizes(), wte_.value.options()),
                     statistics = at::empty({x.size(0), rms_ ? 1 : 2}, x.options());
    if (rms_) {
      RmsNorm(x, norm_.weight.value, norm_.epsilon, out, statistics.view(-1), rows_);
    } else {
      Norm(x, norm_.weight.value, norm_.bias.value, out, statistics, rows_);
    }
    return {out, statistics};
  }

  // Of all ranks' parts of the vocabulary, of which the first may have one row more.
  at::Tensor LastLogits(const TensorRows& ranks, const at::Tensor& last) const {
    const int64_t own = wte_.value.size(0), samples = last.size(0), size = ranks.ranks().size();
    const int64_t most = (share_.vocabulary + size - 1) / size;
    const at::Tensor part = at::zeros({samples, most}, wte_.value.options());
    gemms_.Compute(Normalise(last).first, wte_.value.t(), part.narrow(1, 0, own));
    const at::Tensor all = at::empty({size * samples, most}, part.options());
    ranks.ranks().Gather(part, all);
    std::vector<at::Tensor> parts;
    const int64_t longer = share_.vocabulary % size;  // ranks with one row more, or 0: all have as many
    for (int64_t r = 0; r < size; ++r) {
      parts.push_back(all.narrow(0, r * samples, samples).narrow(1, 0, longer > 0 && r >= longer ? most - 1 : most));
    }
    return at::cat(parts, 1);
  }

  // Adds each piece's loss. With `scale` calls body(piece of `all`, rows that begin with the gradient of its logits).
  template <typename F>
  void EachPiece(const Context& context, const TensorRows& ranks, const at::Tensor& all, double scale,
                 const F& body) const {
    const int64_t rows = all.size(0), own = wte_.value.size(0);
    const int64_t most = static_cast<int64_t>(models::PieceRows(static_cast<uint64_t>(rows), piece_rows_));
    const int64_t columns = (own + kAlignedLogits - 1) / kAlignedLogits * kAlignedLogits;
    const at::Tensor targets = context.targets().reshape({-1}),
                     padded = at::empty({most, columns}, wte_.value.options());
    // fp32 logits, which become their gradient.
    const at::Tensor wide = narrow_ ? at::empty({most, columns}, padded.options().dtype(at::kFloat)) : padded;
    for (int64_t first = 0; first < rows; first += most) {
      const int64_t n = std::min(most, rows - first);
      const at::Tensor piece = all.narrow(0, first, n), logits = padded.narrow(0, 0, n).narrow(1, 0, own);
      gemms_.Compute(piece, wte_.value.t(), logits);
      at::Tensor exact = wide.narrow(0, 0, n).narrow(1, 0, own);
      if (narrow_) exact.copy_(logits);
      AddLoss(context, ranks, targets.narrow(0, first, n), wide, exact, scale);
      if (scale == 0) continue;
      if (narrow_) at::Tensor(logits).copy_(exact);
      body(piece, padded.narrow(0, 0, n));
    }
  }

  // `logits`: columns of rows of `base`; with `scale` they become their gradient.
  void AddLoss(const Context& context, const TensorRows& ranks, const at::Tensor& targets, const at::Tensor& base,
               const at::Tensor& logits, double scale) const {
    const int64_t n = logits.size(0), own = logits.size(1), size = ranks.ranks().size();
    const at::Tensor place = targets.sub(share_.first_id), elsewhere = place.lt(0).logical_or_(place.ge(own));
    const at::Tensor column = place.masked_fill(elsewhere, 0);
    const at::Tensor top = logits.amax({1});
    const at::Tensor picked = logits.gather(1, column.unsqueeze(1)).squeeze(1).masked_fill(elsewhere, 0);
    logits.sub_(top.unsqueeze(1)).exp_();
    const at::Tensor mine = at::stack({top, logits.sum(1), picked}, 1),
                     every = at::empty({size * n, 3}, mine.options());
    ranks.ranks().Gather(mine, every);
    const at::Tensor each = every.view({size, n, 3}), tops = each.select(2, 0), highest = tops.amax({0});
    const at::Tensor sums = each.select(2, 1).mul(tops.sub(highest).exp_()).sum(0);
    const at::Tensor losses = sums.to(at::kDouble).log().add_(highest).sub_(each.select(2, 2).sum(0));
    at::Tensor(context.loss_sum).add_(losses.sum());
    if (scale == 0) return;
    at::Tensor factor = top.sub(highest).exp_().div_(sums).mul_(scale);
    at::Tensor target = elsewhere.logical_not().to(logits.scalar_type()).mul_(-scale);
    if (context.gradient_scale.defined()) factor.mul_(context.gradient_scale), target.mul_(context.gradient_scale);
    logits.mul_(factor.unsqueeze(1));
    // Flat indices: LibTorch is deterministic on a GPU only for one-dimensional indexing.
    const at::Tensor at = at::arange(n, targets.options()).mul_(base.size(1)).add_(column);
    base.view(-1).index_add_(0, at, target);
  }

  const FinalNorm norm_;
  const Parameter wte_;
  const LanguageShare share_;
  const bool narrow_;  // parameters and activations in bf16 or fp16
  const bool rms_;     // RMSNorm
  const Gemms gemms_;
  const RowCode rows_;
  const uint64_t piece_rows_;
};

}  // namespace

std::unique_ptr<UnitModule> MakeVocabularyHead(FinalNorm norm, Parameter table, uint64_t piece_rows,
                                               const LanguageShare& share, const UnitOptions& options) {
  return std::make_unique<VocabularyHead>(std::move(norm), std::move(table), piece_rows, share, options);
}

}  // namespace muster::units
