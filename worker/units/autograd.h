// Runs LibTorch's autograd inside one unit; the only place that includes autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace muster::units {

// Gradients of `output`, given its own gradient, with respect to `inputs`; `output` must depend on all inputs.
std::vector<at::Tensor> Gradients(const at::Tensor& output, const at::Tensor& output_gradient,
                                  const std::vector<at::Tensor>& inputs);

}  // namespace muster::units
