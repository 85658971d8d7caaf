// Decides on the device whether a step's update is skipped and how much its gradients are clipped, so that a GPU runs
// the optimizer without waiting for the host.
#pragma once

#include <ATen/core/Tensor.h>

namespace muster::engine {

struct UpdateDecision {
  at::Tensor divisor;  // fp32 [1]: gradients are divided by it; 1: no clipping
  at::Tensor skip;     // fp32 [1]: 1: the update is skipped; else 0
};

// `numbers`: float64 [n], which must be finite; the last is the gradient norm, clipped to `clip_norm` (infinity: no
// clipping) as by torch.nn.utils.clip_grad_norm_. `halted`: fp32 [1], 0 at first; becomes 1 once a number is not finite
// and is the result's `skip`, so that steps issued before the host knows update nothing either.
UpdateDecision DecideUpdate(const at::Tensor& numbers, double clip_norm, const at::Tensor& halted);

}  // namespace muster::engine
