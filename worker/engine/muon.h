// Muon, as torch.optim.Muon of PyTorch 2.13 (K. Jordan, https://kellerjordan.github.io/posts/muon/; Liu et al., arXiv
// 2502.16982): the momentum of a matrix is orthogonalized by Newton-Schulz iterations in bf16 before it is applied.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "worker/engine/optimizer.h"

namespace muster::engine {

// Runs with a shape are matrices, flattened to [first dimension, the others]; the others are updated by AdamW with the
// options' adamw_ numbers, whose learning rate is to adamw_lr as the step's is to lr, as by MakeOptimizer. Its
// temporaries are those of strategies::UpdateBytes.
std::unique_ptr<FlatOptimizer> MakeMuon(const Optimizer& options, std::vector<Run> runs, const MakeZeros& zeros,
                                        const units::Gemms& gemms, bool by_programs);

// Of a matrix, which must not be empty: US'V^T in bf16, where USV^T is its singular value decomposition and S' about 1.
// The matrix is rounded to bf16 first, as torch.optim.Muon does.
at::Tensor Orthogonalized(const at::Tensor& matrix, uint32_t steps, const units::Gemms& gemms);

}  // namespace muster::engine
