#include "worker/units/split_backward.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace muster::units {
namespace {

// By parameter: its part of `flat`; undefined for matrices.
std::vector<at::Tensor> Vectors(const std::vector<Parameter>& parameters, const at::Tensor& flat) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const Parameter& parameter : parameters) {
    parts.emplace_back();
    if (parameter.value.dim() != 1) continue;
    parts.back() = flat.narrow(0, begin, parameter.value.numel());
    begin += parameter.value.numel();
  }
  return parts;
}

at::Tensor ZerosForVectors(const std::vector<Parameter>& parameters) {
  int64_t elements = 0;
  at::TensorOptions options;
  for (const Parameter& parameter : parameters) {
    if (parameter.value.dim() != 1) continue;
    elements += parameter.value.numel(), options = parameter.gradient.options();
  }
  return at::zeros({elements}, options);
}

}  // namespace

std::vector<at::Tensor> OwnGradients(const std::vector<Parameter>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const Parameter& parameter : parameters) gradients.push_back(parameter.gradient);
  return gradients;
}

std::vector<at::Tensor> DeferredVectors(const std::vector<Parameter>& parameters, Saved& deferred) {
  deferred.tensors = {ZerosForVectors(parameters)};
  return Vectors(parameters, deferred.tensors[0]);
}

void GradientSinks::Defer(const at::Tensor& x, const at::Tensor& d) const {
  deferred_->insert(deferred_->end(), {x, d});
}

at::Tensor GradientSinks::Beside(const at::Tensor& x) const { return defers() ? at::empty_like(x) : x; }

at::Tensor GradientSinks::Unchanging(const at::Tensor& d) const { return defers() ? d.clone() : d; }

std::vector<at::Tensor> AddDeferredVectors(const std::vector<Parameter>& parameters, Saved deferred) {
  const std::vector<at::Tensor> vectors = Vectors(parameters, deferred.tensors[0]);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (vectors[i].defined()) parameters[i].gradient.add_(vectors[i]);
  }
  deferred.tensors.erase(deferred.tensors.begin());
  return std::move(deferred.tensors);
}

}  // namespace muster::units
