// Chooses the implementation of attention for a model's blocks.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "worker/engine/engine.h"

namespace muster::engine {

// Times the implementations with the blocks' shape and one microbatch, and selects the fastest. Returns the choice and
// the reason, for the log. Process-wide, like LibTorch's setting.
std::string ChooseAttention(const Config& config, at::Device device);

}  // namespace muster::engine
