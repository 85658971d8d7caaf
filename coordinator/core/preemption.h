// Stops running jobs, in good order, for the first waiting one: who may take whose slots is scheduler/preempt.h's rule.
// What is stopped writes a checkpoint, goes back to its place in the queue, and spends no restart. No job is preempted
// before its generation has run for Options::preemption_min_run. Private to coordinator/core.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "coordinator/core/generations.h"
#include "coordinator/core/projects.h"
#include "coordinator/scheduler/preempt.h"

namespace muster::core {

class Preemption {
 public:
  // All outlive it.
  Preemption(const Options* options, Records* records, const Projects* projects, Generations* generations)
      : options_(options), records_(records), projects_(projects), generations_(generations) {}

  // Whether any job may be preempted at all.
  bool IsOn() const { return options_->preempt_lower_priority || projects_->any(); }
  // The job is the first that waits for slots of its device. Stops jobs if that lets it start. `demand`: with a
  // resolved device. `nodes`, with what is reserved for jobs before it, `claims` and `quotas` as of now. Returns when a
  // job that is still protected may be preempted for it.
  std::optional<SteadyTime> For(const JobEntry& job, scheduler::Demand demand, std::vector<scheduler::NodeView> nodes,
                                const std::map<JobId, scheduler::Claim>& claims, const scheduler::Quotas& quotas,
                                Transaction& transaction);

 private:
  // Whether a job that is stopping will take its slots again before the claimant can.
  static bool Returns(const JobEntry& job, const scheduler::Claim& claim, const scheduler::Claimant& claimant);
  scheduler::Victim VictimOf(const JobEntry& job, const scheduler::Claim& claim, Now now) const;

  const Options* const options_;
  Records* const records_;
  const Projects* const projects_;
  Generations* const generations_;
};

}  // namespace muster::core
