// Nodes: connection, reports, drain and loss. Private to coordinator/core.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/generations.h"
#include "coordinator/core/hangs.h"
#include "coordinator/core/node_health.h"

namespace muster::core {

class Nodes {
 public:
  // All outlive it.
  Nodes(const Options* options, Records* records, Generations* generations, Hangs* hangs)
      : options_(options), records_(records), generations_(generations), hangs_(hangs), health_(options, records) {}

  // After a restart of the coordinator: every node must connect again. True: there are nodes to empty.
  bool Recover(Now now);

  void On(const NodeConnected& event, Transaction& transaction);
  void On(const NodeDisconnected& event, Transaction& transaction);
  void On(const NodeObserved& event, Transaction& transaction);
  void On(const DrainNode& event, Transaction& transaction);
  void On(const UndrainNode& event, Transaction& transaction);
  void On(const ForgetNode& event, Transaction& transaction);
  // On a tick: nodes whose time to come back is over, and faults that count no more.
  void CheckAway(Transaction& transaction);
  // Nodes that have been lost for too long.
  void ForgetLost(Transaction& transaction);

  // ---- Called after every event, in this order, as far as the transaction has room; the rest is left to the next ----
  // Skips numbers of generations that workers have seen and this store does not know.
  void NoteSeenGenerations(Transaction& transaction);
  // Jobs forget that nodes which were undrained have refused them.
  void ForgiveRefusals(Transaction& transaction);
  // Takes what nodes reported.
  void ReadInbox(Transaction& transaction);
  // Keeps what went wrong on nodes, and drains a node on which too much did.
  void JudgeFaults(Transaction& transaction);
  // Stops ranks on draining nodes, and marks ranks on lost nodes as lost.
  void Empty(Transaction& transaction);

 private:
  absl::Status CheckIdentity(const Node& node) const;
  void Observe(const NodeId& node, const ObservedRank& seen, Transaction& transaction);
  std::vector<ObservedRank> Unreported(const NodeId& node, const std::set<RankId>& reported, Now now) const;
  void LoseRanks(JobEntry& job, const NodeId& node, Transaction& transaction);
  // If so many nodes are away at once that a network failure is likelier than node failures: "7 of 20 nodes". Else
  // empty.
  std::string ManyAway() const;
  void NoteStuck(const NodeId& id, NodeEntry& node, const Observed& observed, Transaction& transaction);
  // A job whose generation has not ended and has ranks there, also such as have exited: everything that looks at a
  // generation's ranks finds their nodes. Null: there is none.
  const JobEntry* NeededBy(const NodeId& node) const;
  std::optional<SteadyTime> ForgetAt(Now now) const;
  void Forget(const NodeId& id, const std::string& why, Transaction& transaction);
  void LoseOrSpare(const NodeId& id, NodeEntry& node, const std::string& many_away, Transaction& transaction);

  const Options* const options_;
  Records* const records_;
  Generations* const generations_;
  Hangs* const hangs_;
  NodeHealth health_;

  // Work left over from earlier events. In memory only: after a restart the nodes' states show which to empty, and
  // workers send full reports and the generations that they have seen.
  struct Report {
    NodeId node;
    std::string incarnation;
    std::optional<ObservedRank> rank;  // none: marks the end of a full report
  };
  std::deque<Report> inbox_;
  struct Seen {
    uint64_t number = 0;
    NodeId node;
  };
  std::map<JobId, Seen> seen_;  // the highest of each job
  std::set<NodeId> forgiven_;   // they were undrained
  std::set<NodeId> emptying_;   // draining, leaving or LOST nodes that may still have ranks
};

}  // namespace muster::core
