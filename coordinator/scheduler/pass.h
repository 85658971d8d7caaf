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
// does not hold back jobs on the other device. Only the first waiting job has slots reserved.
//
// Nodes may be reserved for others in windows of time (Closed): jobs that would still run then are not placed there.
// The head's start takes that into account. A job that even an idle cluster could not hold before such a window is over
// does not take the head's place, which may be a week off: it is the *late head*, and the first job that could start
// before is the head. Jobs that do not end before the late head can start leave it the slots that it needs. Jobs that
// run in a reservation have a head of their own: no others run on its nodes meanwhile.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

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

  // Whether it ends, by its time limit, before the heads of that device need the slots, so that it may start on any of
  // them: all that matters about when a job ends. False: there is no head, or it is not known when it starts.
  struct Before {
    bool head = false, late_head = false;
    auto operator<=>(const Before&) const = default;
  };
  Before EndsBefore(const Claim& claim, Device device, const std::string& reservation) const;

  // It is the first job that waits for slots of its device, and not the late head.
  bool IsHead(const JobId& job) const;
  // When the job starts at the latest; infinite: not known, or it is no head.
  absl::Duration StartsIn(const JobId& job) const;

  // No further job in the queue can start outside of reservations.
  bool Over() const;

 private:
  struct Head {
    JobId job;
    Demand demand;                                        // with a resolved device, in one domain, at `free_until`
    absl::Duration idle_from{};                           // when an idle cluster could hold it
    absl::Duration starts_in = absl::InfiniteDuration();  // at the latest
    absl::Duration free_until{};  // jobs that end by then cannot delay it: starts_in, where known, else idle_from
    std::map<NodeId, uint64_t> overtakers{};  // suitable slots held beyond that by jobs after it in queue order
    Spare spare{};                            // what later jobs may still take
  };
  using Pool = std::pair<Device, std::string>;  // a device, and a reservation or none
  Head MakeHead(const Claim& claim, const Demand& demand, Device device) const;
  const Head* FindHead(Device device, const std::string& reservation) const;
  const Head* FindLateHead(Device device, const std::string& reservation) const;
  // Whether there are slots that do not suit the head: of too little memory, or on nodes that it avoids.
  static bool LeavesSlots(const Head& head);
  // How many ranks a later job may have if it needs more than those: it may also use slots that do not suit the head.
  static Demand Beside(const Demand& demand, const Head& head);
  // Where it would start if only its head, and these, keep slots.
  Decision BesideHead(const Claim& claim, const Demand& demand, const Decision* kept,
                      std::vector<const Spare*> spares) const;
  Decision Held(const Demand& demand) const;
  Spare SpareBeside(const Head& head) const;
  // The job, which starts, holds these slots that the head may need.
  void Overtake(const Claim& claim, const Decision& decision, Head& head) const;

  Cluster* const cluster_;
  std::map<Pool, Head> heads_;
  std::map<Device, Head> late_heads_;
};

}  // namespace muster::scheduler
