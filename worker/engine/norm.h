#pragma once

#include <ATen/core/Tensor.h>

namespace muster::engine {

// The Euclidean norm of a contiguous fp32 tensor of one dimension, as a scalar tensor on its device (no host
// synchronisation). Summed in two levels: LibTorch's own reduction over a whole CPU tensor keeps a few running fp32
// sums, which makes the norm of 124 million elements 1.3% too small. This one has an error of at most 3e-6 at equal
// cost.
at::Tensor FlatNorm(const at::Tensor& flat);

}  // namespace muster::engine
