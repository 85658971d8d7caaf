// Optimizers over flat runs of parameters: ranges of buffers whose elements share one set of options, or whole tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/spec.pb.h"
#include "worker/engine/update_decision.h"
#include "worker/units/gemm.h"

namespace muster::engine {

struct Run {
  at::Tensor parameter;  // fp32 or bf16 [length], of one dtype in all runs
  at::Tensor gradient;   // fp32 [length]
  int64_t begin = 0;     // index among the trained elements that the optimizer updates
  int64_t length = 0;
  bool decay = false;
  // Of a tensor that is updated as a whole (strategies::IsUpdatedWhole), which this run is; else empty.
  std::vector<int64_t> shape = {};
  // What this rank computes with in place of `parameter`: a copy, bf16 or fp16 [length], of one dtype in all runs.
  // Undefined: there is none that stays from step to step.
  at::Tensor computed = {};
};

// The state of the elements [begin, begin + length) of those that the optimizer updates.
struct StatePart {
  std::string kind;  // its name in checkpoints
  int64_t begin = 0, length = 0;
  at::Tensor values;  // fp32 [length]
  // If it is a factor of the whole tensor that begins at `begin`: its own shape, of which `values` has the elements.
  std::vector<uint64_t> shape = {};
};

class FlatOptimizer {
 public:
  virtual ~FlatOptimizer() = default;
  // Step number `step` (from 1) with gradients multiplied by `factor` (clipping). May overwrite the gradients. Copies
  // in Run::computed are then of the updated parameters, rounded to the nearest, of two equally near the even one.
  virtual void Step(uint64_t step, double learning_rate, double factor) = 0;
  // The same with gradients divided by the decision's divisor, and no update if it skips. `step` counts skipped ones,
  // too. The decision is on the parameters' device and never read by the host.
  virtual void StepUnless(const UpdateDecision& decision, uint64_t step, double learning_rate) = 0;
  virtual std::vector<StatePart> State() = 0;
};

// Whether its StepUnless reads UpdateDecision::now.
bool TakesRateFromDevice(const Optimizer& options);

// Makes fp32 zeros for the state, where the parameters are.
using MakeZeros = std::function<at::Tensor(int64_t elements)>;

// `elements` of state. AdamW and SGD as torch.optim's of the same names. Lion as Algorithm 2 of Chen et al. (arXiv
// 2302.06675) with decoupled weight decay; its temporary is one block of elements, not one per run. Muon: muon.h;
// Adafactor: adafactor.h. Of parameters in bf16, without copies: narrow_weights.h. `by_programs`: AdamW by the program
// of GPUs (worker/units/adamw.h), on any device, instead of LibTorch's operator. The program writes the copies in its
// pass; what others update is copied after it.
std::unique_ptr<FlatOptimizer> MakeOptimizer(const Optimizer& options, std::vector<Run> runs, int64_t elements,
                                             const MakeZeros& zeros, const units::Gemms& gemms,
                                             bool by_programs = false);

}  // namespace muster::engine
