// Accounts for a job's time since its submission, by the steady clock. Every moment counts once, and no category ever
// shrinks. Time since a generation's last step belongs to no category until the next event (another step, or a fault)
// decides it.
//
//   TimeTracker time(TimeBreakdown(), TimeTracker::Phase::kQueued, now);
//   time.Place(/*resumed_step=*/0, now);
//   time.Run(now);
//   time.Step(1, now);
//   time.Fault(now);             // time since the last step counts as detecting
//   TimeBreakdown shown = time.UpTo(now);
//
// Pure, not thread-safe. Time without a running coordinator is not counted, since no trusted clock measured it.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "common/clock.h"
#include "proto/job.pb.h"

namespace muster::core {

class TimeTracker {
 public:
  enum class Phase {
    kQueued,
    kStarting,    // placed; no earlier generation has run
    kRunning,     // steps are completed
    kRecovering,  // after a fault or a resize, until steps are completed again
    kPaused,
    kOver,
  };

  TimeTracker() : TimeTracker(TimeBreakdown(), Phase::kQueued, 0, SteadyTime()) {}
  // `kept`: the stored breakdown. `done_step`: the highest step that the job is known to have completed.
  TimeTracker(TimeBreakdown kept, Phase phase, uint64_t done_step, SteadyTime now);

  Phase phase() const { return phase_; }
  // Time up to `now` belongs to the previous phase.
  void Enter(Phase phase, SteadyTime now);
  // A generation was placed.
  void Place(uint64_t resumed_step, SteadyTime now);
  // Its ranks resume from this step, and not from that of Place.
  void Resume(uint64_t step) { step_ = step; }
  // Every rank of it starts its first step.
  void Run(SteadyTime now) { Enter(Phase::kRunning, now); }
  // The generation has finished `step`. Ignored unless running.
  void Step(uint64_t step, SteadyTime now);
  // Its steps waited this long for a checkpoint; subtracted from the steps that are reported next.
  void Stall(double seconds);
  // A fault was detected: time since the last step counts as its detection.
  void Fault(SteadyTime now);

  TimeBreakdown UpTo(SteadyTime now) const;

 private:
  void Add(double seconds, TimeBreakdown& sums) const;  // to the category of the phase; not for steps

  TimeBreakdown sums_;
  Phase phase_;
  SteadyTime since_;                   // sums_ covers all time up to here
  double stalled_ = 0;                 // not yet subtracted from steps
  uint64_t done_before_;               // highest step of earlier generations
  uint64_t highest_;                   // highest step of all generations
  std::optional<uint64_t> step_ = {};  // of this generation; none: not known yet
};

}  // namespace muster::core
