#include "worker/units/autograd_unit.h"

#include <c10/core/GradMode.h>

#include <utility>

#include "worker/units/autograd.h"

namespace muster::units {

AutogradUnit::AutogradUnit(std::vector<Parameter> parameters) : parameters_(std::move(parameters)) {
  for (const Parameter& parameter : parameters_) leaves_.push_back(parameter.value.detach().requires_grad_(true));
}

Activations AutogradUnit::Forward(const Context& context, const Activations& in, Saved& saved) {
  if (context.mode != Mode::kTrain && context.mode != Mode::kRecompute) {
    const c10::AutoGradMode off(false);
    if (context.mode != Mode::kGenerate) return {Compute(in[0], nullptr, 0)};
    saved.tensors.resize(1);
    return {Compute(in[0], &saved.tensors[0], context.position)};
  }
  const c10::AutoGradMode on(true);
  const at::Tensor x = in[0].detach().requires_grad_(true);
  const at::Tensor y = Compute(x, nullptr, 0);
  saved.tensors = {x, y};
  return {y.detach()};
}

Activations AutogradUnit::Backward(const Context&, Saved saved, const Activations& grads) {
  std::vector<at::Tensor> inputs = {saved.tensors[0]};
  inputs.insert(inputs.end(), leaves_.begin(), leaves_.end());
  std::vector<at::Tensor> gradients = Gradients(saved.tensors[1], grads[0], inputs);
  const c10::AutoGradMode off(false);
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].gradient.add_(gradients[i + 1]);
  return {std::move(gradients[0])};
}

}  // namespace muster::units
