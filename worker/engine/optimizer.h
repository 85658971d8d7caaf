// Optimizers over flat runs of parameters: ranges of buffers whose elements share one set of options.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/spec.pb.h"

namespace muster::engine {

struct Run {
  at::Tensor parameter, gradient;  // fp32 [length]
  int64_t begin = 0;               // element of the state
  int64_t length = 0;
  bool decay = false;
};

class FlatOptimizer {
 public:
  virtual ~FlatOptimizer() = default;
  // Step number `step` (from 1) with gradients multiplied by `factor` (clipping). May overwrite the gradients.
  virtual void Step(uint64_t step, double learning_rate, double factor) = 0;
  // The same with gradients divided by `divisor`, and no update if `skip` is 1: both fp32 [1] on the parameters'
  // device, never read by the host.
  virtual void StepUnless(const at::Tensor& skip, const at::Tensor& divisor, uint64_t step, double learning_rate) = 0;
  // fp32 [elements] each, with their names in checkpoints.
  virtual std::vector<std::pair<std::string, at::Tensor>> State() = 0;
};

// `elements` of state on `device`. AdamW and SGD as torch.optim's of the same names. Lion as Algorithm 2 of Chen et al.
// (arXiv 2302.06675) with decoupled weight decay; its temporary is one block of elements, not one per run.
std::unique_ptr<FlatOptimizer> MakeOptimizer(const Optimizer& options, std::vector<Run> runs, int64_t elements,
                                             at::Device device);

}  // namespace muster::engine
