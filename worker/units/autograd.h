// Runs LibTorch's autograd inside one unit; the only place that includes autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace muster::units {

// Gradients of `output`, given its own gradient, with respect to `inputs`; `output` must depend on all inputs.
std::vector<at::Tensor> Gradients(const at::Tensor& output, const at::Tensor& output_gradient,
                                  const std::vector<at::Tensor>& inputs);
// Undefined for inputs that `output` does not depend on.
std::vector<at::Tensor> PossibleGradients(const at::Tensor& output, const at::Tensor& output_gradient,
                                          const std::vector<at::Tensor>& inputs);

// `output`, computed from `inputs` without autograd, as a result that autograd goes back through by `backward`: from
// the output's gradient to those of the inputs. What it throws must be a std::exception, which Gradients throws on. On
// a GPU a thread of autograd's calls it, while the caller of Gradients waits.
at::Tensor WithBackward(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                        std::function<std::vector<at::Tensor>(const at::Tensor& output_gradient)> backward);

}  // namespace muster::units
