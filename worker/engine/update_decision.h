// What the optimizer must know of a step, computed where the gradients lie: so a GPU goes on to the optimizer's step
// while the host has yet to hear whether the numbers are finite and how much was clipped.
#pragma once

#include <ATen/core/Tensor.h>

namespace muster::engine {

struct UpdateDecision {
  at::Tensor divisor;  // fp32 [1]: gradients are divided by it; 1: not clipped
  at::Tensor skip;     // fp32 [1]: 1 when a number is not finite, and nothing is to be updated; else 0
};

// `numbers`: float64 [n], all to be finite, the last the gradient's norm, which is clipped to `clip_norm` (infinity:
// not) as torch.nn.utils.clip_grad_norm_ does.
UpdateDecision DecideUpdate(const at::Tensor& numbers, double clip_norm);

}  // namespace muster::engine
