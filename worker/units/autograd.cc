#include "worker/units/autograd.h"

#include <torch/csrc/autograd/autograd.h>

namespace muster::units {

std::vector<at::Tensor> Gradients(const at::Tensor& output, const at::Tensor& output_gradient,
                                  const std::vector<at::Tensor>& inputs) {
  return torch::autograd::grad({output}, inputs, {output_gradient});
}

}  // namespace muster::units
