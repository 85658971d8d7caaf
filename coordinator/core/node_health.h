// What went wrong on nodes, and what their workers found when they checked their machines. Private to coordinator/core.
//
// Both are kept in the node's record, so a restart of the coordinator forgets neither a fault nor a failed check.
#pragma once

#include <set>
#include <vector>

#include "coordinator/core/entries.h"
#include "coordinator/core/records.h"
#include "coordinator/core/transaction.h"

namespace muster::core {

// Forgets the node's faults that `drop` returns true for. True: there were some.
template <typename Drop>
bool DropFaults(NodeEntry& node, Drop drop) {
  auto& faults = *node.machine.fields().mutable_faults();
  int kept = 0;
  for (int i = 0; i < faults.size(); ++i) {
    const auto number = static_cast<size_t>(i);
    if (drop(faults.at(i), node.fault_times.at(number))) continue;
    faults.SwapElements(i, kept);
    node.fault_times.at(static_cast<size_t>(kept++)) = node.fault_times.at(number);
  }
  const bool dropped = kept < faults.size();
  faults.DeleteSubrange(kept, faults.size() - kept);
  node.fault_times.resize(static_cast<size_t>(kept));
  return dropped;
}

class NodeHealth {
 public:
  // Both outlive it.
  NodeHealth(const Options* options, Records* records) : options_(options), records_(records) {}

  // After a restart of the coordinator: each fault counts for a whole window more, since no decision depends on wall
  // time.
  void Recover(Now now);

  // What the worker reports; null: an older worker, which reports none.
  void Take(const NodeId& id, NodeEntry& node, const Preflight* preflight, Transaction& transaction);
  // Compares the worker's clock, as it connects, with the coordinator's. Nothing but an event follows: no decision
  // depends on wall time, and either of the two may be wrong.
  void CompareClocks(const NodeId& id, absl::Time of_worker, Transaction& transaction);

  // If its last preflight found a problem: asks for another one now.
  void AskAgain(const NodeId& id, NodeEntry& node, Transaction& transaction);

  // Called after every event: keeps what went wrong, asks for a preflight where more than one job had faults, and
  // drains nodes on which too much went wrong. Returns those that it has drained.
  std::vector<NodeId> Judge(Transaction& transaction);
  // On a tick: forgets faults that are older than the window, as far as the transaction has room.
  void ForgetOld(Transaction& transaction);
  void Forget(const NodeId& id) { with_faults_.erase(id); }

 private:
  bool MayDrainAnother() const;
  // True: it is drained now.
  bool Drain(const NodeId& id, NodeEntry& node, Transaction& transaction) const;

  const Options* const options_;
  Records* const records_;
  std::set<NodeId> with_faults_;
};

}  // namespace muster::core
