// The implementation of attention that a model's blocks use.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "worker/engine/engine.h"

namespace muster::engine {

// Chooses it by trying them with the blocks' shape and one microbatch; `parameters` says device and dtype. Returns what
// was chosen and why. Process-wide, as LibTorch's choice is.
std::string ChooseAttention(const Config& config, const at::Tensor& parameters);

}  // namespace muster::engine
