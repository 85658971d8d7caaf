#include "worker/units/classifier_head.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mean.h>

#include <utility>

#include "worker/units/logits_loss.h"
#include "worker/units/row_kernels.h"

namespace muster::units {
namespace {

class ClassifierHead final : public UnitModule {
 public:
  ClassifierHead(Parameter weight, Parameter bias)
      : weight_(std::move(weight)), bias_(std::move(bias)), wide_(WideType(weight_.value.scalar_type())) {}

  // In training, the loss comes in backward, so only the input is saved.
  Activations Forward(const Context& context, const Activations& in, Saved& saved) override {
    if (!context.targets().defined()) return {Logits(Pooled(in[0]))};
    if (context.mode == Mode::kTrain || context.mode == Mode::kRecompute) {
      saved.tensors = {in[0]};
    } else if (context.mode == Mode::kEvaluate) {
      AddEvaluation(context, Logits(Pooled(in[0])));
    }
    return {};
  }

  Activations Backward(const Context& context, Saved saved, const Activations&) override {
    const at::Tensor& x = saved.tensors[0];
    const at::Tensor pooled = Pooled(x), d = AddLossForGradient(context, Logits(pooled));
    if (weight_.gradient.defined()) weight_.gradient.addmm_(d.t(), pooled);
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

  const Parameter weight_, bias_;
  const at::ScalarType wide_;
};

}  // namespace

std::unique_ptr<UnitModule> MakeClassifierHead(Parameter weight, Parameter bias) {
  return std::make_unique<ClassifierHead>(std::move(weight), std::move(bias));
}

}  // namespace muster::units
