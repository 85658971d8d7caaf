// Chooses kernels: the implementation of attention for a model's blocks, whether the units may use our row programs,
// and whether kernels must be deterministic.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "worker/engine/engine.h"

namespace muster::engine {

// Whether a job's GPUs may only use kernels that compute the same bits each time: the default, also of a job that was
// stored before the field existed.
bool IsDeterministic(const Train& train);

struct Kernels {
  std::string attention;           // of units::AttentionNames()
  bool portable = false;           // the row programs failed their check: units by LibTorch's operators
  std::vector<std::string> notes;  // the choices and their reasons
};

// The kernels of all ranks. The first rank whose stage of a pipeline has attention times the implementations that there
// are, with the shape of most of its blocks (their heads of queries, of keys and values, and their window) and one
// microbatch, and takes the fastest. Rank 0 checks the row programs against LibTorch's operators. The others take what
// these two found, since times differ from process to process, and kernels by bits. Where no stage has attention, plain
// GEMMs. Changes nothing but, on a GPU, LibTorch's setting of attention for the process. Errors of the world group.
absl::StatusOr<Kernels> AgreeOnKernels(const Config& config, at::Device device);

}  // namespace muster::engine
