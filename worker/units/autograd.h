// LibTorch's autograd inside one unit; the only header of ours behind which autograd is included.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace muster::units {

// Gradients of `output` (whose own gradient is given) with respect to `inputs`, which must all take part.
std::vector<at::Tensor> Gradients(const at::Tensor& output, const at::Tensor& output_gradient,
                                  const std::vector<at::Tensor>& inputs);

}  // namespace muster::units
