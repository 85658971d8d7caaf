#include "worker/engine/learning_rate.h"

#include <algorithm>
#include <cmath>

namespace muster::engine {

double LearningRate(const Optimizer& optimizer, uint64_t step, uint64_t steps) {
  const double peak = optimizer.lr();
  const LrSchedule& schedule = optimizer.lr_schedule();
  const uint64_t warmup = schedule.warmup_steps();
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (schedule.kind_case() == LrSchedule::kConstant || schedule.kind_case() == LrSchedule::KIND_NOT_SET) return peak;

  if (schedule.has_step()) {
    const auto& milestones = schedule.step().milestones();
    const auto passed = std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin();
    return peak * std::pow(schedule.step().gamma(), static_cast<double>(passed));
  }
  const double left = static_cast<double>(steps) - 1.0 - static_cast<double>(warmup);
  const double done = left <= 0 ? 1.0 : std::min(1.0, static_cast<double>(step - warmup) / left);
  if (schedule.has_linear()) return peak + (schedule.linear().min_lr() - peak) * done;
  const double floor = schedule.cosine().min_lr();
  return floor + (peak - floor) * 0.5 * (1.0 + std::cos(M_PI * done));
}

}  // namespace muster::engine
