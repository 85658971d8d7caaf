#include "worker/engine/update_decision.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <limits>

#include "strategies/compile.h"

namespace muster::engine {

UpdateRules RulesOf(const Train& train) {
  UpdateRules rules;
  const double clip_norm = train.optimizer().clip_norm();
  rules.clip_norm = clip_norm > 0 ? clip_norm : std::numeric_limits<double>::infinity();
  rules.most_skipped = train.on_nonfinite().skip().steps();
  if (!strategies::ScalesLoss(train)) return rules;
  const LossScaling& scaling = train.precision().loss_scaling();
  rules.growth = scaling.growth();
  rules.backoff = scaling.backoff();
  rules.minimum = scaling.minimum();
  rules.growth_interval = scaling.growth_interval();
  return rules;
}

UpdateState FirstUpdateState(const Train& train) {
  UpdateState state;
  state.set_loss_scale(strategies::ScalesLoss(train) ? train.precision().loss_scaling().initial() : 1);
  return state;
}

at::Tensor ToTensor(const UpdateState& state, at::Device device) {
  double numbers[kUpdateNumbers] = {};
  numbers[kLossScale] = state.loss_scale();
  numbers[kGoodSteps] = static_cast<double>(state.good_steps());
  numbers[kSkippedInARow] = static_cast<double>(state.skipped_in_a_row());
  numbers[kSkippedSteps] = static_cast<double>(state.skipped_steps());
  return at::tensor(at::ArrayRef<double>(numbers), at::TensorOptions(at::kDouble)).to(device);
}

UpdateState ToUpdateState(const double* numbers) {
  UpdateState state;
  state.set_loss_scale(numbers[kLossScale]);
  state.set_good_steps(static_cast<uint64_t>(numbers[kGoodSteps]));
  state.set_skipped_in_a_row(static_cast<uint64_t>(numbers[kSkippedInARow]));
  state.set_skipped_steps(static_cast<uint64_t>(numbers[kSkippedSteps]));
  return state;
}

at::Tensor UnlessSkipped(const UpdateDecision& decision, double value, double otherwise) {
  return at::full({1}, value, decision.skip.options()).masked_fill_(decision.skip.to(at::kBool), otherwise);
}

UpdateDecision DecideUpdate(const UpdateRules& rules, const at::Tensor& numbers, const at::Tensor& state) {
  const auto before = [&](UpdateNumber which) { return state.narrow(0, which, 1); };
  const at::Tensor scale = before(kLossScale), norm = numbers.narrow(0, numbers.size(0) - 1, 1);
  UpdateDecision decision{.divisor = norm.add(1e-6).div(rules.clip_norm).clamp_min(1).mul(scale).to(at::kFloat),
                          .skip = {},
                          .skipped = before(kSkippedSteps).to(at::kFloat)};
  const at::Tensor good = at::isfinite(numbers).all().view({1}), bad = good.logical_not();
  // An overflow above the least scale only lowers the scale.
  const at::Tensor in_a_row = before(kSkippedInARow).add(scale.le(rules.minimum)).mul(bad);
  const at::Tensor halted = at::maximum(before(kHalted), in_a_row.gt(static_cast<double>(rules.most_skipped)));
  const at::Tensor good_steps = before(kGoodSteps).add(1).mul(good);
  const at::Tensor grows = good_steps.ge(static_cast<double>(rules.growth_interval));
  // Never to infinity, from which it could not come back.
  const at::Tensor grown = scale.mul(rules.growth).clamp_max(std::numeric_limits<float>::max());
  const at::Tensor next =
      at::where(good, at::where(grows, grown, scale), scale.mul(rules.backoff).clamp_min(rules.minimum));
  const at::Tensor skipped = before(kSkippedSteps).add(bad.mul(halted.logical_not()));
  state.copy_(at::cat({halted, next, good_steps.mul(grows.logical_not()), in_a_row, skipped}));
  decision.skip = at::maximum(halted, bad).to(at::kFloat);
  return decision;
}

}  // namespace muster::engine
