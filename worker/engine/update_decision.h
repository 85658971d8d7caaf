// Decides on the device whether a step's update is skipped and how much its gradients are clipped, so that a GPU runs
// the optimizer without waiting for the host.
#pragma once

#include <ATen/core/Tensor.h>

namespace muster::engine {

struct UpdateDecision {
  at::Tensor divisor;  // fp32 [1]: gradients are divided by it; 1: no clipping
  at::Tensor skip;     // fp32 [1]: 1 if a number is not finite, so that the update is skipped; else 0
};

// `numbers`: float64 [n], which must be finite; the last is the gradient norm, clipped to `clip_norm` (infinity: no
// clipping) as by torch.nn.utils.clip_grad_norm_.
UpdateDecision DecideUpdate(const at::Tensor& numbers, double clip_norm);

}  // namespace muster::engine
