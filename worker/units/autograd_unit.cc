#include "worker/units/autograd_unit.h"

#include <c10/core/GradMode.h>

#include <utility>

#include "worker/units/autograd.h"

namespace muster::units {

AutogradUnit::AutogradUnit(std::vector<Parameter> parameters) : parameters_(std::move(parameters)) {
  for (const Parameter& parameter : parameters_) {
    leaves_.push_back(parameter.value.detach().requires_grad_(parameter.gradient.defined()));
  }
}

Activations AutogradUnit::Forward(const Context& context, const Activations& in, Saved& saved) {
  const bool first = in.empty();
  if (context.mode != Mode::kTrain && context.mode != Mode::kRecompute) {
    const c10::AutoGradMode off(false);
    at::Tensor* kept = nullptr;
    if (context.mode == Mode::kGenerate) {
      saved.tensors.resize(1);
      kept = &saved.tensors[0];
    }
    return {Compute(context, first ? context.inputs() : in[0], kept)};
  }
  const c10::AutoGradMode on(true);
  // Ranks that share samples all exchange gradients of keys and values, also where none are needed.
  const bool exchanges = context.sequence != nullptr;
  const at::Tensor x = first ? context.inputs() : in[0].detach().requires_grad_(context.input_gradient || exchanges);
  const at::Tensor y = Compute(context, x, nullptr);
  saved.tensors = {x, y};
  return {y.detach()};
}

Activations AutogradUnit::Backward(const Context& context, Saved saved, const Activations& grads) {
  Saved deferred;
  Activations returned = BackwardInputs(context, std::move(saved), grads, deferred);
  BackwardWeights(std::move(deferred));
  return returned;
}

Activations AutogradUnit::BackwardInputs(const Context&, Saved saved, const Activations& grads, Saved& deferred) {
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].gradient.defined()) inputs.push_back(leaves_[i]);
  }
  const bool returns = saved.tensors[0].requires_grad();
  if (returns) inputs.push_back(saved.tensors[0]);
  if (inputs.empty()) return {};
  deferred.tensors = Gradients(saved.tensors[1], grads[0], inputs);
  if (!returns) return {};
  at::Tensor returned = std::move(deferred.tensors.back());
  deferred.tensors.pop_back();
  return {std::move(returned)};
}

void AutogradUnit::BackwardWeights(Saved deferred) {
  const c10::AutoGradMode off(false);
  auto gradient = deferred.tensors.begin();
  for (const Parameter& parameter : parameters_) {
    if (gradient == deferred.tensors.end()) return;
    if (parameter.gradient.defined()) parameter.gradient.add_(*gradient++);
  }
}

}  // namespace muster::units
