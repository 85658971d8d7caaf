#include "coordinator/core/time_tracker.h"

#include <algorithm>
#include <utility>

namespace muster::core {

TimeTracker::TimeTracker(TimeBreakdown kept, Phase phase, uint64_t done_step, SteadyTime now)
    : sums_(std::move(kept)), phase_(phase), since_(now), done_before_(done_step), highest_(done_step) {}

void TimeTracker::Add(double seconds, TimeBreakdown& sums) const {
  switch (phase_) {
    case Phase::kQueued:
      return sums.set_queued(sums.queued() + seconds);
    case Phase::kStarting:
      return sums.set_starting(sums.starting() + seconds);
    case Phase::kRecovering:
      return sums.set_recovering(sums.recovering() + seconds);
    case Phase::kPaused:
      return sums.set_paused(sums.paused() + seconds);
    case Phase::kRunning:
    case Phase::kOver:
      return;
  }
}

void TimeTracker::Enter(Phase phase, SteadyTime now) {
  if (phase_ == Phase::kOver) return;
  if (phase_ == Phase::kRunning) {
    // The end of the generation's work: time since the last step is checkpoint stall, as far as one was reported.
    const double rest = absl::ToDoubleSeconds(now - since_);
    const double stall = std::min(rest, std::exchange(stalled_, 0));
    sums_.set_checkpoint_stall(sums_.checkpoint_stall() + stall);
    sums_.set_training(sums_.training() + rest - stall);
  } else {
    Add(absl::ToDoubleSeconds(now - since_), sums_);
  }
  since_ = now;
  phase_ = phase;
}

void TimeTracker::Place(uint64_t resumed_step, SteadyTime now) {
  Enter(phase_ == Phase::kQueued ? Phase::kStarting : phase_, now);
  done_before_ = highest_;
  step_ = resumed_step;
  stalled_ = 0;
}

void TimeTracker::Step(uint64_t step, SteadyTime now) {
  if (phase_ != Phase::kRunning || (step_.has_value() && step <= *step_)) return;
  const double seconds = absl::ToDoubleSeconds(now - since_);
  const double stall = std::min(seconds, stalled_);
  stalled_ -= stall;
  // A report may cover several steps, the first of which may repeat earlier ones.
  const uint64_t before = step_.value_or(step - 1);
  const uint64_t again = std::clamp(done_before_, before, step) - before;
  const double recomputing = (seconds - stall) * static_cast<double>(again) / static_cast<double>(step - before);
  sums_.set_checkpoint_stall(sums_.checkpoint_stall() + stall);
  sums_.set_recomputing(sums_.recomputing() + recomputing);
  sums_.set_training(sums_.training() + std::max(0.0, seconds - stall - recomputing));
  since_ = now;
  step_ = step;
  highest_ = std::max(highest_, step);
}

void TimeTracker::Stall(double seconds) {
  if (phase_ == Phase::kRunning && seconds > 0) stalled_ += seconds;
}

void TimeTracker::Fault(SteadyTime now) {
  if (phase_ == Phase::kRunning) {
    sums_.set_detecting(sums_.detecting() + absl::ToDoubleSeconds(now - since_));
    since_ = now;
    stalled_ = 0;
  }
  Enter(Phase::kRecovering, now);
}

TimeBreakdown TimeTracker::UpTo(SteadyTime now) const {
  TimeBreakdown sums = sums_;
  Add(absl::ToDoubleSeconds(now - since_), sums);
  return sums;
}

}  // namespace muster::core
