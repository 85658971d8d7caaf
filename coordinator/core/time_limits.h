// How long a job may hold slots: `time_limit` of its spec. Some time before it a running job writes a checkpoint and
// its users get an event; at the limit it stops in good order, with a checkpoint, and has failed. Private to
// coordinator/core.
//
// The time counts from the placement of each generation to its end, over all of them, not while the job waits. Time
// without a running coordinator is not counted, since no trusted clock measured it.
#pragma once

#include <optional>

#include "absl/time/time.h"
#include "common/clock.h"
#include "coordinator/core/generations.h"

namespace muster::core {

// Infinite: none. REQUIRES: the spec was checked.
absl::Duration TimeLimitOf(const JobSpec& spec);

// How long before the limit the job is warned.
absl::Duration WarningOf(absl::Duration limit);

// What is left of it; infinite: there is no limit.
absl::Duration TimeLeft(const JobEntry& job, SteadyTime now);

class TimeLimits {
 public:
  // All outlive it.
  TimeLimits(Jobs* jobs, Generations* generations) : jobs_(jobs), generations_(generations) {}

  // When Check is due: at the warning, then at the limit. nullopt: there is no limit, or it has stopped.
  static std::optional<SteadyTime> DueAt(const JobEntry& job);
  // Warns or stops a job. REQUIRES: due.
  void Check(JobEntry& job, Transaction& transaction);
  // How long the job holds its slots at most: from now, or, waiting, from its start. Infinite: there is no limit.
  absl::Duration EndsIn(const JobEntry& job, SteadyTime now) const;

 private:
  Jobs* const jobs_;
  Generations* const generations_;
};

}  // namespace muster::core
