// One walk over the queue: who starts now. Pure.
//
//   Cluster cluster(nodes);
//   Pass pass(&cluster);
//   for (const Claim& claim : queue) {  // in its order; jobs in back-off are left out
//     const Decision decision = pass.Consider(claim, demand);
//     if (!decision.ranks.empty()) pass.Start(claim, decision);  // else pass.Why(decision, demand)
//   }
//
// The rule. Jobs are tried in their order, each as a whole gang. The first that has to wait for slots of a device, and
// that the nodes could hold if they were idle, is that device's *head*: its ranks are reserved. A job behind it may
// overtake only on slots that the head can do without: if
//     the head's ranks + the slots held by jobs that stand behind it in the order + the job's ranks
// are no more than the slots of the nodes that take ranks now. So the head starts at the latest when every job that
// ran at the moment it became the head has ended (unless a node goes, or a job comes that stands before it): what has
// overtaken it leaves it room, and no stream of small jobs can put it off. How long a job runs is never asked for,
// since nobody knows it.
//
// A job that may run on fewer ranks than it wants is placed with as many as there is room for; as the head only those
// that it needs are reserved.
//
// Where the head needs slots of more memory than some have, all of this counts only those that suit it; the others are
// free for jobs behind it.
//
// A job that these nodes could never hold reserves nothing: those behind it cannot delay it. One device's head holds
// back nobody on the other. Only the first is reserved for: the second waits its turn to be the head.
#pragma once

#include <map>
#include <string>

#include "coordinator/scheduler/place.h"
#include "coordinator/scheduler/queue.h"

namespace muster::scheduler {

// Not thread-safe. Costs per job are those of Cluster::Place up to the head, constant behind it.
class Pass {
 public:
  // `cluster` outlives it.
  explicit Pass(Cluster* cluster) : cluster_(cluster) {}

  // Where it would start, or no ranks. REQUIRES: in the order of the queue.
  Decision Consider(const Claim& claim, const Demand& demand);
  // Why it was given no ranks, for people.
  std::string Why(const Decision& decision, const Demand& demand) const;
  // It does: the slots of the decision are no longer free.
  void Start(const Claim& claim, const Decision& decision);

  // Nobody can start any more, whatever comes.
  bool Over() const;

 private:
  struct Head {
    JobId job;
    Demand demand;            // of a resolved device
    uint64_t overtakers = 0;  // slots that suit it, held by jobs behind it
  };
  // Slots that suit the head, and that jobs behind it may still take.
  uint64_t Spare(const Head& head) const;
  // What such a job may still have where it needs more than those: slots that do not suit the head.
  static Demand Beside(const Demand& demand, const Head& head);
  Decision Held(const Demand& demand) const;

  Cluster* const cluster_;
  std::map<Device, Head> heads_;
};

}  // namespace muster::scheduler
