// Preemption: whose slots a waiting job takes. Pure.
//
// A job may take slots
//   - as reclaim: within its project's own quota, from jobs on borrowed slots: of its cohort, or of projects without a
//     quota, whatever their priority;
//   - by priority, where that is allowed: from jobs of lower priority that come after it in the queue's order, unless
//     they are on another project's own quota.
// So a job only ever loses slots to one that comes before it in the queue's order, and no two jobs can preempt each
// other in turns.
#pragma once

#include <string>
#include <vector>

#include "coordinator/scheduler/place.h"
#include "coordinator/scheduler/quota.h"

namespace muster::scheduler {

struct Claimant {
  Claim claim;
  std::string project;
  Demand demand;  // with a resolved device
  bool by_priority = false;
};

// A running job that is not protected.
struct Victim {
  Claim claim;
  std::string project;
  uint64_t slots = 0;            // that it holds, of the claimant's device
  bool preemptible = false;      // its user said so
  double lost_slot_seconds = 0;  // work since its last checkpoint
  Demand fewer{};                // with which it could run on, if that is fewer ranks; else of 0 ranks
};

// Whether the rules let the claimant take the victim's slots.
bool MayPreempt(const Claimant& claimant, const Victim& victim, const Quotas& quotas);

// The jobs to stop so that the claimant can start; none if that is impossible, or if it will start anyway. `nodes`:
// with the slots of jobs that are stopping as free. Jobs that can go on with fewer ranks beside the claimant come
// first; then those that are cheapest: preemptible, least work lost, youngest. None is stopped without need.
std::vector<JobId> ChooseVictims(const std::vector<NodeView>& nodes, const Claimant& claimant,
                                 std::vector<Victim> candidates, Quotas quotas);

}  // namespace muster::scheduler
