// Adafactor, as torch.optim.Adafactor of PyTorch 2.13 (Shazeer and Stern 2018, arXiv 1804.04235, with the learning rate
// as the bound of the relative step, and epsilon 1 in the denominators): the second moments of a matrix are kept as a
// row and a column.
#pragma once

#include <memory>
#include <vector>

#include "worker/engine/optimizer.h"

namespace muster::engine {

// Every run has a shape. Of more than two dimensions the last two are factored, as torch.optim.Adafactor does. Its
// temporary is one block of elements.
std::unique_ptr<FlatOptimizer> MakeAdafactor(const Optimizer& options, const std::vector<Run>& runs,
                                             const MakeZeros& zeros);

}  // namespace muster::engine
