// What one Handle call of a Core produces: changed records, events, actions. Private to coordinator/core.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/entries.h"

namespace muster::core {

class Transaction {
 public:
  explicit Transaction(Now now) : now(now) {}

  // True if another step of work would not fit into this commit. The work is then left to the next tick.
  bool Full() {
    constexpr size_t kLimit = 100, kLargestStep = 10;
    // A changed job's use is a row of its project.
    const size_t uses = std::max(usages.size(), std::min(jobs.size(), projects_in_use));
    const size_t used = jobs.size() + uses + generations.size() + nodes.size() + runs.size() + projects.size() +
                        reservations.size() + templates.size() + deleted_keys.size() + events.size();
    work_left |= used + kLargestStep > kLimit;
    return work_left;
  }

  // Nothing to store, report or do.
  bool Empty() const {
    return jobs.empty() && generations.empty() && nodes.empty() && runs.empty() && projects.empty() &&
           reservations.empty() && templates.empty() && desired.empty() && deleted_keys.empty() && events.empty() &&
           actions.empty() && !work_left;
  }

  void Touch(const JobId& job) { jobs.insert(job); }
  void Touch(const JobId& job, uint64_t generation) { generations.insert({job, generation}); }
  void Touch(const NodeId& node) { nodes.insert(node); }
  void TouchReservation(const std::string& name) { reservations.insert(name); }
  void TouchRun(const std::string& run) { runs.insert(run); }
  void AddEvent(const JobEntry* job, uint64_t generation, const std::string& node, const std::string& kind,
                const std::string& message);
  void ChangeDesired(const NodeId& node) { desired.insert(node); }
  // Of every node of the generation.
  void ChangeDesired(const GenerationMachine& generation);
  // Something went wrong on a node that it may be to blame for. `job`: of one of its ranks; empty: with the node
  // itself.
  void Blame(const NodeId& node, const JobId& job, std::string what) { faults.push_back({node, job, std::move(what)}); }
  void Do(Action action) { actions.push_back(std::move(action)); }

  const Now now;
  bool work_left = false;
  absl::Status status;
  std::string reason;
  JobId submitted;
  SyncReply sync;
  std::optional<SteadyTime> sync_waits_until;
  std::set<JobId> jobs;
  std::set<std::pair<JobId, uint64_t>> generations;
  std::set<NodeId> nodes;
  std::set<std::string> runs;
  std::set<std::string> projects;
  std::set<std::string> reservations;
  std::set<std::string> usages;  // of these projects
  size_t projects_in_use = 0;    // that may have a row of use
  std::set<std::string> templates;
  std::set<NodeId> desired;
  std::vector<std::string> deleted_keys;
  std::vector<StateEvent> events;
  std::vector<Action> actions;
  struct Fault {
    NodeId node;
    JobId job;
    std::string what;
  };
  std::vector<Fault> faults;  // what Nodes::JudgeFaults takes
};

}  // namespace muster::core
