#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "models/inventory.h"
#include "models/inventory_build.h"
#include "worker/units/autograd.h"
#include "worker/units/gemm.h"
#include "worker/units/language.h"
#include "worker/units/llama_rows.h"
#include "worker/units/row_kernels.h"

namespace muster::units {
namespace {

// Final norm, logits by the tied embedding, and cross entropy, in blocks of rows. Backward computes a block's logits,
// adds their loss, turns them into their gradient in place, and multiplies with it. So in training, forward only saves
// the input. With bf16 or fp16 parameters the loss is still computed in fp32, from narrow logits row by row; the
// portable code takes fp32 logits on a GPU, from a GEMM with wider output.
class Head final : public UnitModule {
 public:
  Head(FinalNorm norm, Parameter table, uint64_t piece_rows, const UnitOptions& options)
      : norm_(std::move(norm)),
        wte_(std::move(table)),
        narrow_(IsNarrow(wte_.value)),
        portable_(options.portable),
        rms_(!norm_.bias.value.defined()),
        gemms_(options.bf16_gemms, options.fp32_gemms),
        rows_(options.rows),
        piece_rows_(piece_rows * (narrow_ && wte_.value.is_cpu() ? kNarrowRowFactor : 1)) {}

  Activations Forward(const Context& context, const Activations& in, Saved& saved) override {
    const int64_t width = in[0].size(2);
    if (!context.targets().defined()) {
      const at::Tensor last = in[0].select(1, in[0].size(1) - 1).contiguous();
      const at::Tensor logits = at::empty({last.size(0), wte_.value.size(0)}, wte_.value.options());
      gemms_.Compute(Normalise(last).normed, wte_.value.t(), logits);
      return {logits};
    }
    if (context.mode == Mode::kTrain || context.mode == Mode::kRecompute) {
      saved.tensors = {in[0]};
      return {};
    }
    EachBlock(context, in[0].reshape({-1, width}), /*scale=*/0, [](const RowBlock&) {});
    return {};
  }

  Activations Backward(const Context& context, Saved saved, const Activations&) override {
    const int64_t width = saved.tensors[0].size(2);
    // NormBackward adds each block to dx, so dx starts at zero.
    const at::Tensor x = saved.tensors[0].reshape({-1, width}), dx = portable_ ? at::empty_like(x) : at::zeros_like(x);
    EachBlock(context, x, context.loss_scale, [&](const RowBlock& block) {
      const at::Tensor& normed = block.norm.normed;
      AddTableGradient(block);
      at::Tensor d_normed = normed;
      gemms_.ComputeOfPadded(block.padded, wte_.value, d_normed);
      if (block.factor != 1) d_normed.mul_(block.factor);
      const at::Tensor rows = dx.narrow(0, block.first, block.x.size(0));
      if (portable_) return NormByOperatorsBackward(block, d_normed, rows);
      const at::Tensor &statistics = block.norm.statistics, &weight = norm_.weight.value;
      if (rms_) {
        return RmsNormBackward(d_normed, block.x, statistics.view(-1), weight, rows, norm_.weight.gradient, rows_);
      }
      NormBackward(d_normed, block.x, statistics, weight, rows, norm_.weight.gradient, norm_.bias.gradient, rows_);
    });
    return {dx.view(saved.tensors[0].sizes())};
  }

 private:
  struct Normed {
    at::Tensor normed;
    at::Tensor statistics;          // of the row operations
    std::vector<at::Tensor> graph;  // of operators: the norm before rounding, and what it depends on
  };
  struct RowBlock {
    int64_t first;  // row
    at::Tensor x;
    Normed norm;
    at::Tensor padded;  // rows of aligned lengths, which begin with
    at::Tensor d;       // the logits' gradient, if requested, without
    double factor = 1;  // this factor
  };

  Normed Normalise(const at::Tensor& x) const {
    if (!portable_) {
      const Normed out{
          at::empty(x.sizes(), wte_.value.options()), at::empty({x.size(0), rms_ ? 1 : 2}, x.options()), {}};
      if (rms_) {
        RmsNorm(x, norm_.weight.value, norm_.epsilon, out.normed, out.statistics.view(-1), rows_);
      } else {
        Norm(x, norm_.weight.value, norm_.bias.value, out.normed, out.statistics, rows_);
      }
      return out;
    }
    // LibTorch's norms take parameters of the input's dtype.
    const c10::AutoGradMode on(true);
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& leaf : {x, norm_.weight.value, norm_.bias.value}) {
      if (leaf.defined()) leaves.push_back(leaf.detach().to(x.scalar_type()).requires_grad_(true));
    }
    const at::Tensor y = leaves.size() == 3
                             ? at::layer_norm(leaves[0], {x.size(1)}, leaves[1], leaves[2], norm_.epsilon)
                             : at::rms_norm(leaves[0], {x.size(1)}, leaves[1], norm_.epsilon);
    leaves.insert(leaves.begin(), y);
    return {y.detach().to(wte_.value.scalar_type()), {}, std::move(leaves)};
  }

  void NormByOperatorsBackward(const RowBlock& block, const at::Tensor& d, const at::Tensor& rows) const {
    const std::vector<at::Tensor>& graph = block.norm.graph;
    const std::vector<at::Tensor> gradients =
        Gradients(graph[0], d.to(graph[0].scalar_type()), {graph.begin() + 1, graph.end()});
    rows.copy_(gradients[0]);
    norm_.weight.gradient.add_(gradients[1]);
    if (gradients.size() == 3) norm_.bias.gradient.add_(gradients[2]);
  }

  void AddTableGradient(const RowBlock& block) const {
    if (wte_.gradient.defined()) gemms_.AddTo(wte_.gradient, block.d.t(), block.norm.normed, block.factor);
  }

  // Adds each block's loss, and calls `body` with the logits' gradient if `scale` is not zero.
  template <typename F>
  void EachBlock(const Context& context, const at::Tensor& x, double scale, const F& body) const {
    const int64_t rows = x.size(0), vocabulary = wte_.value.size(0);
    const int64_t most = static_cast<int64_t>(models::PieceRows(static_cast<uint64_t>(rows), piece_rows_));
    const int64_t columns = (vocabulary + kAlignedLogits - 1) / kAlignedLogits * kAlignedLogits;
    const at::Tensor targets = context.targets().reshape({-1}),
                     padded = at::empty({most, columns}, wte_.value.options());
    at::Tensor wide = padded;  // fp32 logits; `padded` then holds their gradient
    if (portable_ && narrow_) wide = at::empty({most, columns}, x.options().dtype(at::kFloat));
    for (int64_t first = 0; first < rows; first += most) {
      const int64_t n = std::min(most, rows - first);
      const at::Tensor d = padded.narrow(0, 0, n);
      RowBlock block{
          .first = first, .x = x.narrow(0, first, n), .norm = {}, .padded = d, .d = d.narrow(1, 0, vocabulary)};
      block.norm = Normalise(block.x);
      const at::Tensor answers = targets.narrow(0, first, n), logits = wide.narrow(0, 0, n);
      Multiply(logits.narrow(1, 0, vocabulary), block.norm.normed);
      if (portable_) {
        logits.narrow(1, vocabulary, columns - vocabulary).fill_(-std::numeric_limits<double>::infinity());
        AddLossByOperators(logits, answers, scale != 0, d, context.loss_sum);
        block.factor = scale;
        if (scale != 0 && context.gradient_scale.defined()) {
          d.mul_(context.gradient_scale.mul(scale));
          block.factor = 1;
        }
      } else {
        CrossEntropy(block.d, answers, scale, context.loss_sum, rows_, context.gradient_scale);
      }
      body(block);
    }
  }

  // logits = normed wte^T, without an intermediate rounding to bf16 where possible.
  void Multiply(at::Tensor logits, const at::Tensor& normed) const {
    const at::Tensor turned = wte_.value.t();
    if (logits.scalar_type() == normed.scalar_type()) {
      gemms_.Compute(normed, turned, logits);
    } else if (logits.is_cpu()) {  // LibTorch has a GEMM with wider output on GPUs only
      const at::Tensor rounded = at::empty(logits.sizes(), normed.options());
      gemms_.Compute(normed, turned, rounded);
      logits.copy_(rounded);
    } else {
      at::mm_out(logits, normed, turned, at::kFloat);
    }
  }

  // sum += the loss of these rows. The logits become log-probabilities; `d`, which may alias them, their gradient.
  static void AddLossByOperators(at::Tensor logits, const at::Tensor& targets, bool gradient, at::Tensor d,
                                 const at::Tensor& sum) {
    at::_log_softmax_out(logits, logits, 1, /*half_to_float=*/false);
    // Flat indices of the targets: LibTorch is deterministic on a GPU only for one-dimensional indexing.
    const at::Tensor picks = at::arange(targets.size(0), targets.options()).mul_(logits.size(1)).add_(targets);
    sum.sub_(logits.view(-1).index_select(0, picks).sum(at::kDouble));
    if (!gradient) return;
    at::exp_out(d, logits);
    d.view(-1).index_add_(0, picks, at::full({targets.size(0)}, -1, d.options()));
  }

  const FinalNorm norm_;
  const Parameter wte_;
  const bool narrow_;    // parameters and activations in bf16 or fp16
  const bool portable_;  // LibTorch's operators only
  const bool rms_;       // RMSNorm
  const Gemms gemms_;
  const RowCode rows_;
  const uint64_t piece_rows_;
};

}  // namespace

LanguageShare LanguageShareOf(const Inventory& inventory) {
  if (!inventory.has_tensor_rank()) return {};
  const uint64_t vocabulary = models::Find(inventory.task(), models::kTargets).bound();
  const models::Part part =
      models::PartOf(vocabulary, {.ranks = models::TensorRanks(inventory), .rank = inventory.tensor_rank()});
  return {inventory.tensor_rank(), static_cast<int64_t>(part.begin), static_cast<int64_t>(vocabulary),
          inventory.sequence_parallel()};
}

std::unique_ptr<UnitModule> MakeLanguageHead(FinalNorm norm, Parameter table, uint64_t piece_rows,
                                             const LanguageShare& share, const UnitOptions& options) {
  if (share.vocabulary > 0) {
    return MakeVocabularyHead(std::move(norm), std::move(table), piece_rows, share, options);
  }
  return std::make_unique<Head>(std::move(norm), std::move(table), piece_rows, options);
}

}  // namespace muster::units
