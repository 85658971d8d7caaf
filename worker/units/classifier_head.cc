#include "worker/units/classifier_head.h"

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mean.h>

#include <utility>

#include "worker/units/row_kernels.h"

namespace muster::units {
namespace {

class ClassifierHead final : public UnitModule {
 public:
  ClassifierHead(Parameter weight, Parameter bias)
      : weight_(std::move(weight)), bias_(std::move(bias)), wide_(WideType(weight_.value.scalar_type())) {}

  // In training, the loss comes in backward, so only the input is saved.
  Activations Forward(const Context& context, const Activations& in, Saved& saved) override {
    if (!context.targets.defined()) return {Logits(Pooled(in[0]))};
    if (context.mode == Mode::kTrain || context.mode == Mode::kRecompute) {
      saved.tensors = {in[0]};
    } else if (context.mode == Mode::kEvaluate) {
      const at::Tensor logits = Logits(Pooled(in[0]));
      AddLoss(context, at::_log_softmax(logits, 1, /*half_to_float=*/false), 0);
      AddMetrics(context, logits);
    }
    return {};
  }

  Activations Backward(const Context& context, Saved saved, const Activations&) override {
    const at::Tensor& x = saved.tensors[0];
    const at::Tensor pooled = Pooled(x), d = at::_log_softmax(Logits(pooled), 1, /*half_to_float=*/false);
    AddLoss(context, d, context.label_smoothing);
    // The gradient of the logits: their probabilities less the targets'.
    const double each = context.label_smoothing / static_cast<double>(d.size(1));
    d.exp_();
    if (each != 0) d.sub_(each);
    // Flat indices of the targets: LibTorch is deterministic on a GPU only for one-dimensional indexing.
    const at::Tensor picks = at::arange(d.size(0), context.targets.options()).mul_(d.size(1)).add_(context.targets);
    d.view(-1).index_add_(0, picks, at::full({d.size(0)}, context.label_smoothing - 1, d.options()));
    d.mul_(context.loss_scale);
    weight_.gradient.addmm_(d.t(), pooled);
    bias_.gradient.add_(d.sum(0));
    const int64_t pixels = x.size(2) * x.size(3);
    const at::Tensor dx = d.mm(weight_.value.to(wide_)).div_(static_cast<double>(pixels)).to(x.scalar_type());
    return {dx.unsqueeze(2).unsqueeze(3).expand(x.sizes()).contiguous()};
  }

 private:
  at::Tensor Pooled(const at::Tensor& x) const { return x.mean(at::IntArrayRef{2, 3}, /*keepdim=*/false, wide_); }
  at::Tensor Logits(const at::Tensor& pooled) const {
    return at::addmm(bias_.value.to(wide_), pooled, weight_.value.to(wide_).t());
  }

  static void AddLoss(const Context& context, const at::Tensor& logarithms, double smoothing) {
    context.loss_sum.sub_(logarithms.gather(1, context.targets.unsqueeze(1)).sum(at::kDouble), 1 - smoothing);
    if (smoothing != 0) {
      context.loss_sum.sub_(logarithms.sum(at::kDouble), smoothing / static_cast<double>(logarithms.size(1)));
    }
  }

  static void AddMetrics(const Context& context, const at::Tensor& logits) {
    if (!context.metric_sums.defined()) return;
    const at::Tensor before = logits.gt(logits.gather(1, context.targets.unsqueeze(1))).sum(1);
    for (int64_t i = 0; i < context.metric_sums.size(0); ++i) {
      context.metric_sums[i].add_(before.lt(i == 0 ? 1 : 5).sum(at::kDouble));
    }
  }

  const Parameter weight_, bias_;
  const at::ScalarType wide_;
};

}  // namespace

std::unique_ptr<UnitModule> MakeClassifierHead(Parameter weight, Parameter bias) {
  return std::make_unique<ClassifierHead>(std::move(weight), std::move(bias));
}

}  // namespace muster::units
