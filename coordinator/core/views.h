// Read-only views of a Core: jobs with their reason, nodes with their slots, and the desired state of each node.
// Private to coordinator/core.
#pragma once

#include "coordinator/core/queue.h"

namespace muster::core {

class Views {
 public:
  // All outlive it.
  Views(const Records* records, const Plans* plans, const Generations* generations, const Queue* queue)
      : records_(records), plans_(plans), generations_(generations), queue_(queue) {}

  Job Of(const JobEntry& job) const;
  Node Of(const NodeEntry& node, const Records::Holders& holders) const;  // with computed slot states
  std::vector<RankProgress> ProgressOf(const JobEntry& job) const;        // of the generation that runs, by rank
  Desired DesiredFor(const NodeId& node) const;

 private:
  muster::Stop MakeStop(EndReason reason, const Job& job) const;
  Assignment MakeAssignment(const JobEntry& job, const Generation& generation, const RankPlacement& rank) const;

  const Records* const records_;
  const Plans* const plans_;
  const Generations* const generations_;
  const Queue* const queue_;
};

}  // namespace muster::core
