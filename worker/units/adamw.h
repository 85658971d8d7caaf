// AdamW's update (Loshchilov and Hutter 2019) of many runs of elements in one pass over memory and, of up to 64 runs,
// in one launch: on a CUDA tensor's device on the current stream, on a CPU by a loop (cuda/adamw_program.h).
//
//   UpdateByAdamW(runs, {.learning_rate = 1e-3, .step = 7}, decision);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace muster::units {

struct AdamWRun {
  at::Tensor parameter, gradient, exp_avg, exp_avg_sq;  // fp32 [n], contiguous
  // Undefined, or bf16 or fp16 [n], contiguous, of one dtype in all runs: becomes a copy of the updated parameter,
  // rounded to the nearest.
  at::Tensor computed = {};
  double weight_decay = 0;
};

struct AdamWNumbers {
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  uint64_t step = 1;  // from 1, with those that were skipped
  double factor = 1;  // of gradients
};

// What the device decides, each fp32 [1] there: by what gradients are divided, whether the update is skipped, and how
// many were before. All undefined: by nothing, no, and none. `now`: undefined, or float64 [2] there: the step and the
// learning rate, in place of those of AdamWNumbers.
struct AdamWDecision {
  at::Tensor divisor, skip, skipped;
  at::Tensor now = {};
};

// Updates all but the gradients in place, in fp32 but for the copies, as torch.optim.AdamW. All tensors are on one
// device, and runs do not overlap. Same bits wherever a run begins. Throws c10::Error for other tensors.
void UpdateByAdamW(const std::vector<AdamWRun>& runs, const AdamWNumbers& numbers, const AdamWDecision& decision = {});

}  // namespace muster::units
