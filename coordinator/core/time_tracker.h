// Where a job's time since its submission goes, by the steady clock. Each moment counts once, and no label ever
// shrinks: time since a generation's last step has no label yet, since the next event decides it (another step, or a
// fault).
//
//   TimeTracker time(TimeBreakdown(), TimeTracker::Phase::kQueued, now);
//   time.Place(/*resumed_step=*/0, now);
//   time.Run(now);
//   time.Step(1, now);
//   time.Fault(now);             // since the last step: detecting
//   TimeBreakdown shown = time.UpTo(now);
//
// Pure, not thread-safe. Time in which no coordinator ran is not counted, since no clock that may be trusted saw it.
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
    kStarting,    // placed, and no generation before it has run
    kRunning,     // steps are done
    kRecovering,  // after a fault, or moved by us: until steps are done again
    kPaused,
    kOver,
  };

  TimeTracker() : TimeTracker(TimeBreakdown(), Phase::kQueued, 0, SteadyTime()) {}
  // `kept`: what was counted before. `done_step`: how far the job had come, as far as is known.
  TimeTracker(TimeBreakdown kept, Phase phase, uint64_t done_step, SteadyTime now);

  Phase phase() const { return phase_; }
  // What has passed belongs to the phase before.
  void Enter(Phase phase, SteadyTime now);
  // A generation was placed.
  void Place(uint64_t resumed_step, SteadyTime now);
  // Every rank of it begins its first step.
  void Run(SteadyTime now) { Enter(Phase::kRunning, now); }
  // It has finished `step`. Only while it runs.
  void Step(uint64_t step, SteadyTime now);
  // Its steps waited so long for a checkpoint: taken from the steps that are told of next.
  void Stall(double seconds);
  // A fault is known: what passed since the last step was its detection.
  void Fault(SteadyTime now);

  TimeBreakdown UpTo(SteadyTime now) const;

 private:
  void Add(double seconds, TimeBreakdown& sums) const;  // to the phase's label, but for steps

  TimeBreakdown sums_;
  Phase phase_;
  SteadyTime since_;                   // up to it everything is in the sums
  double stalled_ = 0;                 // not yet taken from steps
  uint64_t done_before_;               // the highest step of earlier generations
  uint64_t highest_;                   // of all
  std::optional<uint64_t> step_ = {};  // of this one; none: not known yet
};

}  // namespace muster::core
