// Optimizers of weights that are stored in bf16 (precision.params) and updated in fp32: a block of them at a time is
// widened, updated by the optimizer as any other weights, and rounded to the nearest.
#pragma once

#include <memory>
#include <vector>

#include "worker/engine/optimizer.h"

namespace muster::engine {

// As MakeOptimizer, of runs whose parameters are bf16. Its temporary is one block of elements, or the largest run with
// a shape (strategies::UpdateBytes).
std::unique_ptr<FlatOptimizer> MakeNarrowWeightsOptimizer(const Optimizer& options, const std::vector<Run>& runs,
                                                          const MakeZeros& zeros, const units::Gemms& gemms,
                                                          bool by_programs);

}  // namespace muster::engine
