// One scheduling pass over the queue: decides which jobs start now. Pure.
//
//   Cluster cluster(nodes);
//   Pass pass(&cluster);
//   for (const Claim& claim : queue) {  // in queue order, without jobs in backoff
//     const Decision decision = pass.Consider(claim, demand);
//     if (!decision.ranks.empty()) pass.Start(claim, decision);  // else pass.Why(decision, demand)
//   }
//
// The rule. Jobs are tried in queue order, each as a whole gang. The first job that has to wait for slots of a device,
// and that an idle cluster could hold, is that device's *head*: its ranks are reserved. A later job may overtake the
// head only on slots that the head does not need: if
//     the head's ranks + the slots held by jobs that come after it in queue order + the job's ranks
// do not exceed the slots of the nodes that accept ranks now. Where the head's ranks must be together, whole groups of
// them count on each node, so that what is left is not only enough, but also lies together. So the head starts at the
// latest when every job that ran at the moment it became the head has ended (unless a node leaves, or a job of higher
// precedence arrives): jobs that overtook it leave it enough slots, and no stream of small jobs can starve it. The rule
// does not depend on how long a job runs, as long as that is unknown.
//
// Where jobs have a time limit, it often is known by when the head starts: when so many of them have ended that its
// ranks fit, whatever the others do. Then nothing may delay that moment (EASY backfilling: Lifka 1995, "The ANL/IBM SP
// scheduling system"): a later job may overtake on any free slots if it ends by then, else only on slots that the head
// does not need at that time. With this the moment never recedes, unless a node leaves or a job of higher precedence
// arrives.
//
// A job that may run on fewer ranks than it requests gets as many as there are free slots for. If it is the head, only
// its least number of ranks is reserved.
//
// If all ranks of the head must be in one topology domain, they are reserved in one (Cluster::InOneDomain); it starts
// in any of them.
//
// If the head needs slots with more memory than some slots have, or avoids nodes, only slots that suit it count; later
// jobs may use the others.
//
// A job that these nodes could never hold reserves nothing, since later jobs cannot delay it. The head of one device
// does not hold back jobs on the other device. Only the first waiting job has a reservation.
#pragma once

#include <map>
#include <string>

#include "coordinator/scheduler/place.h"
#include "coordinator/scheduler/queue_order.h"

namespace muster::scheduler {

// "1h5m": rounded up.
std::string InMinutes(absl::Duration time);

// Not thread-safe. Up to the head, the cost per job is that of Cluster::Place; after the head it is constant.
class Pass {
 public:
  // `cluster` outlives it.
  explicit Pass(Cluster* cluster) : cluster_(cluster) {}

  // Where the job would start, or no ranks. `kept`: as Cluster::Place. REQUIRES: calls in queue order.
  Decision Consider(const Claim& claim, const Demand& demand, const Decision* kept = nullptr);
  // Why the job got no ranks, for users.
  std::string Why(const Decision& decision, const Demand& demand) const;
  // The job starts: the slots of the decision are no longer free.
  void Start(const Claim& claim, const Decision& decision);

  // Whether it ends, by its time limit, before the head of that device needs the slots, so that it may start on any of
  // them. False: there is no head, or it is not known when it starts.
  bool EndsBeforeHead(const Claim& claim, Device device) const;

  // It is the first job that waits for slots of its device.
  bool IsHead(const JobId& job) const;
  // When the job starts at the latest; infinite: not known, or it is no head.
  absl::Duration StartsIn(const JobId& job) const;

  // No further job in the queue can start.
  bool Over() const;

 private:
  struct Head {
    JobId job;
    Demand demand;                            // with a resolved device, in one domain
    std::map<NodeId, uint64_t> overtakers{};  // suitable slots held by jobs after it in queue order
    absl::Duration starts_in = absl::InfiniteDuration();
    Spare spare{};  // what later jobs may still take
  };
  // Whether there are slots that do not suit the head: of too little memory, or on nodes that it avoids.
  static bool LeavesSlots(const Head& head);
  // How many ranks a later job may have if it needs more than those: it may also use slots that do not suit the head.
  static Demand Beside(const Demand& demand, const Head& head);
  Decision Held(const Demand& demand) const;
  Spare SpareBeside(const Head& head) const;

  Cluster* const cluster_;
  std::map<Device, Head> heads_;
};

}  // namespace muster::scheduler
