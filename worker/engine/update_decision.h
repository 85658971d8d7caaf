// Decides on the device whether a step updates the parameters, how much its gradients are clipped, and the loss scale
// of the next step, so that a GPU runs the optimizer without waiting for the host. A CPU decides by the same code.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "proto/manifest.pb.h"
#include "proto/spec.pb.h"

namespace muster::engine {

struct UpdateRules {
  double clip_norm = 0;  // infinity: no clipping
  // Of the loss scale; with growth and backoff 1 it stays as it is.
  double growth = 1, backoff = 1, minimum = 1;
  uint64_t growth_interval = 1;
  uint64_t most_skipped = 0;  // steps in a row that are not finite, although the scale is at its minimum
};

// `train` is resolved.
UpdateRules RulesOf(const Train& train);
// Before the first step.
UpdateState FirstUpdateState(const Train& train);

// The state between steps: float64 [kUpdateNumbers] on the device.
enum UpdateNumber : int64_t {
  kHalted,  // 1 after a step that may not be skipped, so that later ones, which are already issued, update nothing
  kLossScale,
  kGoodSteps,      // since the scale last changed
  kSkippedInARow,  // as most_skipped counts
  kSkippedSteps,   // of the whole run
  kUpdateNumbers,  // how many there are
};
at::Tensor ToTensor(const UpdateState& state, at::Device device);
// `numbers`: kUpdateNumbers of them, on the host.
UpdateState ToUpdateState(const double* numbers);

struct UpdateDecision {
  at::Tensor divisor;  // fp32 [1]: gradients are divided by it: the loss scale, times a factor above 1 that clips
  at::Tensor skip;     // fp32 [1]: 1: the update is skipped; else 0
  at::Tensor skipped;  // fp32 [1]: updates that were skipped before this step
  // Undefined, or float64 [2]: the number of the step and the learning rate, which are read on the device in place of
  // the host's, so that the update can be replayed. AdamW and SGD do (TakesRateFromDevice).
  at::Tensor now = {};
};

// fp32 [1]: `value`, or `otherwise` where the update is skipped.
at::Tensor UnlessSkipped(const UpdateDecision& decision, double value, double otherwise);

// `numbers`: float64 [n], which must be finite; the last is the gradient's norm without the loss scale, clipped as by
// torch.nn.utils.clip_grad_norm_. `state` becomes that after the step.
UpdateDecision DecideUpdate(const UpdateRules& rules, const at::Tensor& numbers, const at::Tensor& state);

}  // namespace muster::engine
