// Chooses kernels: the implementation of attention for a model's blocks, and whether they must be deterministic.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "worker/engine/engine.h"

namespace muster::engine {

// Whether a job's GPUs may only use kernels that compute the same bits each time: the default, also of a job that was
// stored before the field existed.
bool IsDeterministic(const Train& train);

// Times the implementations with the blocks' shape and one microbatch, and selects the fastest. Returns the choice and
// the reason, for the log. Process-wide, like LibTorch's setting.
std::string ChooseAttention(const Config& config, at::Device device);

}  // namespace muster::engine
