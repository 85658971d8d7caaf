// Batch normalization by the mean and variance over all ranks' samples of a microbatch, forward and backward.
//
// As torch.nn.SyncBatchNorm (torch/nn/modules/_functions.py), whose operators LibTorch has for GPUs only: forward
// gathers each rank's mean, variance and count; backward sums dy and dy * (x - mean) over the ranks. A rank's gradients
// of weight and bias are those of its own samples, to be reduced like all others. By operators that CPUs and GPUs have.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/units/unit.h"

namespace muster::units {

struct BatchNormStatistics {
  at::Tensor running_mean, running_var;  // fp32 [channels], updated by all ranks alike; undefined: not updated
  double momentum = 0, epsilon = 0;
};

// `x`: [samples, channels, height, width], maybe no samples on this rank. `weight` and `bias`: fp32 [channels]. One
// Gather of [2 * channels + 1] now, and one Sum of [2 * channels] in backward, both fp32. The running variance takes
// the unbiased one; of a single value for each channel on all ranks together, 0.
at::Tensor SyncBatchNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const BatchNormStatistics& statistics, SampleRanks& ranks);

}  // namespace muster::units
