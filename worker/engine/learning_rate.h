#pragma once

#include <cstdint>

#include "proto/spec.pb.h"

namespace muster::engine {

// The learning rate of step `step` (from 0) out of `steps`, by a resolved optimizer's lr_schedule (spec.proto).
double LearningRate(const Optimizer& optimizer, uint64_t step, uint64_t steps);

}  // namespace muster::engine
