#include "worker/units/logits_loss.h"

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

namespace muster::units {
namespace {

void AddLogitsLoss(const Context& context, const at::Tensor& logarithms, const at::Tensor& targets, double smoothing) {
  context.loss_sum.sub_(logarithms.gather(1, targets.unsqueeze(1)).sum(at::kDouble), 1 - smoothing);
  if (smoothing != 0) {
    context.loss_sum.sub_(logarithms.sum(at::kDouble), smoothing / static_cast<double>(logarithms.size(1)));
  }
}

}  // namespace

at::Tensor AddLossForGradient(const Context& context, const at::Tensor& logits) {
  const at::Tensor targets = context.targets().reshape({-1}), d = at::_log_softmax(logits, 1, /*half_to_float=*/false);
  AddLogitsLoss(context, d, targets, context.label_smoothing);
  // The gradient of the logits: their probabilities less the targets'.
  const double each = context.label_smoothing / static_cast<double>(d.size(1));
  d.exp_();
  if (each != 0) d.sub_(each);
  // Flat indices of the targets: LibTorch is deterministic on a GPU only for one-dimensional indexing.
  const at::Tensor picks = at::arange(d.size(0), targets.options()).mul_(d.size(1)).add_(targets);
  d.view(-1).index_add_(0, picks, at::full({d.size(0)}, context.label_smoothing - 1, d.options()));
  d.mul_(context.loss_scale);
  return context.gradient_scale.defined() ? d.mul_(context.gradient_scale) : d;
}

void AddEvaluation(const Context& context, const at::Tensor& logits) {
  const at::Tensor targets = context.targets().reshape({-1});
  AddLogitsLoss(context, at::_log_softmax(logits, 1, /*half_to_float=*/false), targets, 0);
  AddTopMetrics(context, logits);
}

void AddTopMetrics(const Context& context, const at::Tensor& logits) {
  if (!context.metric_sums.defined()) return;
  const at::Tensor targets = context.targets().reshape({-1});
  const at::Tensor before = logits.gt(logits.gather(1, targets.unsqueeze(1))).sum(1);
  for (int64_t i = 0; i < context.metric_sums.size(0); ++i) {
    context.metric_sums[i].add_(before.lt(i == 0 ? 1 : 5).sum(at::kDouble));
  }
}

}  // namespace muster::units
