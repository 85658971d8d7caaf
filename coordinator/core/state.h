// What a Core holds, and the operations that its event handlers share. Private to coordinator/core.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/machines.h"
#include "coordinator/scheduler/place.h"

namespace muster::core {

struct JobEntry {
  JobMachine machine;
  std::map<uint64_t, GenerationMachine> generations;
  // In memory only; timers start anew after a recovery.
  std::optional<SteadyTime> not_before;      // back-off
  std::optional<SteadyTime> start_deadline;  // of the newest generation
  uint64_t highest_step = 0;                 // reported in the newest generation

  const Job& record() const { return machine.record(); }
  GenerationMachine* newest() { return generations.empty() ? nullptr : &generations.rbegin()->second; }
  const GenerationMachine* newest() const { return generations.empty() ? nullptr : &generations.rbegin()->second; }
};

struct NodeEntry {
  NodeMachine machine;
  std::optional<SteadyTime> lost_at;  // of an AWAY node
  uint64_t revision = 1;              // of its desired state

  const Node& record() const { return machine.record(); }
};

// One Handle call's results: which records changed, what to tell, what to do.
class Turn {
 public:
  explicit Turn(Now now) : now(now) {}

  void Touch(const JobId& job) { jobs.insert(job); }
  void Touch(const JobId& job, uint64_t generation) { generations.insert({job, generation}); }
  void Touch(const NodeId& node) { nodes.insert(node); }
  void Tell(const JobEntry* job, uint64_t generation, const std::string& node, const std::string& kind,
            const std::string& message);
  void ChangeDesired(const NodeId& node) { desired.insert(node); }
  void Do(Action action) { actions.push_back(std::move(action)); }

  const Now now;
  absl::Status status;
  std::string reason;
  JobId submitted;
  std::set<JobId> jobs;
  std::set<std::pair<JobId, uint64_t>> generations;
  std::set<NodeId> nodes;
  std::set<NodeId> desired;
  std::vector<std::string> deleted_keys;
  std::vector<StateEvent> events;
  std::vector<Action> actions;
};

struct Core::State {
  explicit State(const Options& o) : options(o) {}

  // ---- jobs.cc ----
  void On(const SubmitJob& event, Turn& turn);
  void On(const CancelJob& event, Turn& turn);
  void On(const PauseJob& event, Turn& turn);
  void On(const ResumeJob& event, Turn& turn);
  void On(const DeleteJob& event, Turn& turn);
  // A generation of the job has ended with `reason`: what the job becomes.
  void AfterGeneration(JobEntry& job, const GenerationMachine& generation, Turn& turn);
  void Requeue(JobEntry& job, Turn& turn);
  void SpendRestart(JobEntry& job, EndReason reason, Turn& turn);
  void Finish(JobEntry& job, Turn& turn, const std::string& kind, const std::string& message);
  // The one way to stop a generation: cancel, pause, drain, failure, loss. Ends it at once when no rank is left.
  void Stop(JobEntry& job, EndReason reason, StopIntent intent, Turn& turn);

  // ---- generations.cc ----
  void On(const RankRecord& event, Turn& turn);
  void Schedule(Turn& turn);  // places what can be placed
  void StartGeneration(JobEntry& job, const scheduler::Decision& decision, Turn& turn);
  void MarkRunning(JobEntry& job, uint32_t rank, Turn& turn);
  void RankEnded(JobEntry& job, uint32_t rank, const RankExit& exit, Turn& turn);
  void EndIfEmpty(JobEntry& job, EndReason reason, Turn& turn);
  void Publish(JobEntry& job, const CheckpointWritten& written, Turn& turn);
  void ChangeDesiredOf(const GenerationMachine& generation, Turn& turn);
  std::vector<JobId> Queue() const;  // in its order, those in back-off too
  std::vector<scheduler::NodeView> PlaceableNodes() const;

  // ---- nodes.cc ----
  void On(const NodeConnected& event, Turn& turn);
  void On(const NodeDisconnected& event, Turn& turn);
  void On(const NodeObserved& event, Turn& turn);
  void On(const DrainNode& event, Turn& turn);
  void On(const UndrainNode& event, Turn& turn);
  void On(const Tick& event, Turn& turn);
  void LoseNode(NodeEntry& node, Turn& turn);
  absl::Status CheckIdentity(const Node& node) const;
  void VanishUnreported(const NodeId& node, const std::set<RankId>& reported, Turn& turn);
  std::vector<Slot> SlotsOf(const NodeEntry& node) const;  // with their computed state

  // ---- views.cc ----
  Job View(const JobEntry& job) const;
  Node View(const NodeEntry& node) const;
  std::map<JobId, std::string> QueueReasons() const;
  Desired DesiredFor(const NodeId& node) const;
  Assignment MakeAssignment(const JobEntry& job, const Generation& generation, const RankPlacement& rank) const;

  // ---- rows.cc ----
  absl::Status Load(const std::vector<Row>& rows, Now now);
  absl::Status LoadRow(const Row& row);
  void Arm(Now now);  // timers, after a recovery
  void Write(const Turn& turn, Outcome& outcome) const;

  JobEntry* FindJob(const JobId& id);
  NodeEntry* FindNode(const NodeId& id);
  JobEntry* NeedJob(const JobId& id, Turn& turn);  // sets NotFound
  NodeEntry* NeedNode(const NodeId& id, Turn& turn);

  Options options;
  std::map<JobId, JobEntry> jobs;
  std::map<NodeId, NodeEntry> nodes;
  std::map<std::string, JobId> by_request;
  uint64_t next_sequence = 1;
};

inline constexpr size_t kGenerationsKept = 100;

std::string JobKey(const JobId& job);
std::string GenerationKey(const JobId& job, uint64_t generation);
std::string NodeKey(const NodeId& node);

const RankPlacement* FindRank(const Generation& generation, uint32_t rank);
bool AllExited(const Generation& generation);
// Every rank exited and none failed, at the job's last step.
bool Finished(const JobEntry& job, const Generation& generation);
const char* Name(EndReason reason);

}  // namespace muster::core
