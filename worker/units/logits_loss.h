// Cross entropy of logits [targets, classes], by LibTorch's operators; the context's targets are as many, of any shape.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/units/unit.h"

namespace muster::units {

// Adds the loss with the context's label smoothing to its loss_sum. Returns the gradient of loss_scale times it.
at::Tensor AddLossForGradient(const Context& context, const at::Tensor& logits);

// Adds the loss, and to the metric_sums, if there are any, how many targets are the first of the logits and, of the
// second metric, among the first five; of equal logits the target's comes first.
void AddEvaluation(const Context& context, const at::Tensor& logits);
void AddTopMetrics(const Context& context, const at::Tensor& logits);

}  // namespace muster::units
