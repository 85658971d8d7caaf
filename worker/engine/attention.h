// Chooses kernels: the implementation of attention for a model's blocks, and whether they must be deterministic.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "absl/status/statusor.h"

#include "worker/engine/engine.h"

namespace muster::engine {

// Whether a job's GPUs may only use kernels that compute the same bits each time: the default, also of a job that was
// stored before the field existed.
bool IsDeterministic(const Train& train);

struct Attention {
  std::string name;  // of units::AttentionNames()
  std::string log;   // the choice and its reason
};

// The implementation of attention for all ranks. Rank 0 times those that there are, with the blocks' shape and one
// microbatch, and takes the fastest; the others take what it sends them, since times differ from process to process,
// and implementations by bits. Changes nothing but, on a GPU, LibTorch's setting for the process. Errors of the world
// group.
absl::StatusOr<Attention> AgreeOnAttention(const Config& config, at::Device device);

}  // namespace muster::engine
