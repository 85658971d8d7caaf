// The implementation of attention that a model's blocks use.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "worker/engine/engine.h"

namespace muster::engine {

// Chooses it by trying them with the blocks' shape and one microbatch. Returns what
// was chosen and why. Process-wide, as LibTorch's choice is.
std::string ChooseAttention(const Config& config, at::Device device);

}  // namespace muster::engine
