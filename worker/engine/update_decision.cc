#include "worker/engine/update_decision.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>

namespace muster::engine {

UpdateDecision DecideUpdate(const at::Tensor& numbers, double clip_norm, const at::Tensor& halted) {
  const at::Tensor divisor = numbers.narrow(0, numbers.size(0) - 1, 1).add(1e-6).div(clip_norm).clamp_min(1);
  halted.copy_(at::maximum(halted, at::isfinite(numbers).all().logical_not().to(at::kFloat).view({1})));
  return {divisor.to(at::kFloat), halted};
}

}  // namespace muster::engine
