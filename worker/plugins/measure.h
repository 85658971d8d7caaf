// Measures what the units of a library's model take on this machine's CPU.
#pragma once

#include "absl/status/status.h"
#include "proto/spec.pb.h"
#include "worker/plugins/library.h"

namespace muster::plugins {

// Fills in forward_flops and the bytes of `loaded`'s units. Each unit runs forward and backward on a few random samples
// with fresh parameters, which are freed before the next unit's are made. FLOPs are those of GEMMs, convolutions and
// attention; bytes are the allocator's, so a GPU, whose kernels keep other things, differs.
//
// InvalidArgument: a unit fails, changes the number of samples, draws random numbers from LibTorch's generator, gives
// other bits for the same inputs, or has a parameter or input without a gradient, or the loss or a metric is a mean
// where a sum is due; the message names it.
absl::Status Measure(Loaded& loaded);

}  // namespace muster::plugins
