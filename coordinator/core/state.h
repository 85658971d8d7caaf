// The state of a Core, and the operations that its event handlers share. Private to coordinator/core.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/entries.h"
#include "coordinator/core/exits.h"
#include "coordinator/scheduler/pass.h"
#include "coordinator/scheduler/place.h"
#include "coordinator/scheduler/queue.h"

namespace muster::core {

// What one Handle call produces: changed records, events, actions.
class Transaction {
 public:
  explicit Transaction(Now now) : now(now) {}

  // True if another step of work would not fit into this commit. The work is then left to the next tick.
  bool Full() {
    constexpr size_t kLimit = 100, kLargestStep = 10;
    const size_t used = jobs.size() + generations.size() + nodes.size() + deleted_keys.size() + events.size();
    work_left |= used + kLargestStep > kLimit;
    return work_left;
  }

  // Nothing to store, report or do.
  bool Empty() const {
    return jobs.empty() && generations.empty() && nodes.empty() && desired.empty() && deleted_keys.empty() &&
           events.empty() && actions.empty() && !work_left;
  }

  void Touch(const JobId& job) { jobs.insert(job); }
  void Touch(const JobId& job, uint64_t generation) { generations.insert({job, generation}); }
  void Touch(const NodeId& node) { nodes.insert(node); }
  void AddEvent(const JobEntry* job, uint64_t generation, const std::string& node, const std::string& kind,
                const std::string& message);
  void ChangeDesired(const NodeId& node) { desired.insert(node); }
  void Do(Action action) { actions.push_back(std::move(action)); }

  const Now now;
  bool work_left = false;
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
  void On(const SubmitJob& event, Transaction& transaction);
  void On(const CancelJob& event, Transaction& transaction);
  void On(const PauseJob& event, Transaction& transaction);
  void On(const ResumeJob& event, Transaction& transaction);
  void On(const DeleteJob& event, Transaction& transaction);
  void On(const TraceJob& event, Transaction& transaction);
  void On(const CheckpointJob& event, Transaction& transaction);  // requests.cc
  // Decides what the job becomes after this generation has ended.
  void AfterGeneration(JobEntry& job, const GenerationMachine& generation, Transaction& transaction);
  void Requeue(JobEntry& job, const std::string& why, absl::Duration delay, Transaction& transaction);
  void SpendRestart(JobEntry& job, Transaction& transaction);
  absl::Duration Backoff(const Job& job) const;
  void EnterPaused(JobEntry& job, Transaction& transaction);  // PAUSED
  void ChangeIntent(JobEntry& job, StopIntent intent, const std::string& why, Transaction& transaction);
  void Finish(JobEntry& job, Transaction& transaction, const std::string& kind, const std::string& message);
  // The only way to stop a generation: cancel, pause, drain, failure, loss. `why` is shown to users. A user's request
  // replaces any other reason to stop; other requests do not change a generation that is already stopping.
  void Stop(JobEntry& job, EndReason reason, StopIntent intent, const std::string& why, Transaction& transaction);

  // ---- generations.cc ----
  void On(const RankRecord& event, Transaction& transaction);
  void On(const RankArrived& event, Transaction& transaction);
  void Schedule(Transaction& transaction);  // places all jobs that can start
  // Called after every event: schedules now or in the next tick.
  void ScheduleFor(const Event& event, Transaction& transaction);
  void On(const PlanReady& event, Transaction& transaction);
  // Where the job starts, and its layout. nullopt: it waits, or has failed because it cannot be laid out.
  struct Start {
    scheduler::Decision decision;
    Slots slots;  // of the decision, as they were planned for
    PlannedPtr plan;
  };
  std::optional<Start> FindStart(JobEntry& job, scheduler::Pass& pass, Transaction& transaction);
  // What is known of the job's plan on those slots.
  enum class PlanState {
    kPending,  // it is being made
    kRefused,  // the ranks do not fit there, or it cannot be made for so few; that is remembered
    kReady,    // plans.Find has it
    kFailed,   // it cannot be made on all ranks of the job: it never can be
  };
  PlanState PlanOn(JobEntry& job, Plans::Purpose purpose, const scheduler::Decision& decision);
  // The plan of a running generation was made again, after a restart.
  void TakeGenerationPlan(JobEntry& job, Transaction& transaction);
  void StartGeneration(JobEntry& job, Start start, Transaction& transaction);
  void RankReported(JobEntry& job, uint32_t rank, RankState state, Transaction& transaction);
  void RunIfAllRanksRun(JobEntry& job, Transaction& transaction);
  // `fault`: the generation's end reason if this exit was not requested.
  void RankEnded(JobEntry& job, uint32_t rank, RankExit exit, EndReason fault, Transaction& transaction);
  void EndGenerationOf(JobEntry& job, EndReason reason, Transaction& transaction);
  void Publish(JobEntry& job, const CheckpointWritten& written, Transaction& transaction);
  void ChangeDesiredOf(const GenerationMachine& generation, Transaction& transaction);
  std::vector<scheduler::Claim> Queue() const;  // in order, including jobs in backoff
  static scheduler::Demand DemandOf(const JobEntry& job);
  Slots SlotsFor(const scheduler::Decision& decision) const;
  const Slot* SlotAt(const NodeId& node, uint32_t index) const;  // null: no such slot
  void Measured(const RankPlacement& rank, double flops_per_second, Transaction& transaction);
  // Why the planner refused the job on these slots; null: it did not.
  static const Unfit* RefusedOn(const JobEntry& job, const Slots& slots);
  std::vector<scheduler::NodeView> NodeViews() const;

  // ---- hangs.cc ----
  Timeouts TimeoutsOf(const Job& job) const;
  absl::Duration StopDeadline(const Job& job, EndReason reason) const;
  // The newest generation has finished `step`.
  void NoteStep(JobEntry& job, uint64_t step, Transaction& transaction);
  static void NoteProgress(JobEntry& job, const NodeEntry& node, const ObservedRank& seen, SteadyTime now);
  void CheckHang(JobEntry& job, uint32_t reporter, Transaction& transaction);
  absl::Duration HangLimitOf(const JobEntry& job, const JobEntry::RankProgress& slowest) const;
  void FailHung(JobEntry& job, const RankPlacement& culprit, const JobEntry::RankProgress& progress,
                Transaction& transaction);
  static void AddToFault(JobEntry& job, uint32_t rank, RankExit& exit, Transaction& transaction);

  // ---- resize.cc ----
  // The least number of ranks that the job may start with now.
  static uint32_t LeastRanks(const JobEntry& job);
  static bool RunsOnFewer(const JobEntry& job);
  // kSome: slots for more ranks are free, the planner accepts them, and no queued job can use them.
  enum class Room { kNone, kSome, kNotKnownYet };
  Room RoomToGrow(JobEntry& job);
  void CheckGrowth(JobEntry& job, Transaction& transaction);

  // ---- nodes.cc ----
  void On(const NodeConnected& event, Transaction& transaction);
  void On(const NodeDisconnected& event, Transaction& transaction);
  void On(const NodeObserved& event, Transaction& transaction);
  void On(const DrainNode& event, Transaction& transaction);
  void On(const UndrainNode& event, Transaction& transaction);
  void On(const Tick& event, Transaction& transaction);
  // If so many nodes are away at once that a network failure is likelier than node failures: "7 of 20 nodes". Else
  // empty.
  std::string ManyAway() const;
  void LoseOrSpare(const NodeId& id, NodeEntry& node, const std::string& many_away, Transaction& transaction);
  absl::Status CheckCurrent(const RankId& rank) const;
  // Ranks that do not run yet and have not arrived at the rendezvous while other ranks wait there.
  static std::vector<uint32_t> MissingRanks(const JobEntry& job);
  static std::string NamesOfMissing(const JobEntry& job);
  void CheckStart(JobEntry& job, Transaction& transaction);
  void CheckStop(JobEntry& job, Transaction& transaction);
  absl::Status CheckIdentity(const Node& node) const;
  void ReadInbox(Transaction& transaction);
  void Observe(const NodeId& node, const ObservedRank& seen, Transaction& transaction);
  std::vector<ObservedRank> Unreported(const NodeId& node, const std::set<RankId>& reported, Transaction& transaction);
  // Stops ranks on draining nodes, and marks ranks on lost nodes as lost.
  void EmptyNodes(Transaction& transaction);
  void LoseRanks(JobEntry& job, const NodeId& node, Transaction& transaction);
  struct Holder {
    JobId job;
    SlotState state;
  };
  using Holders = std::map<NodeId, std::map<uint32_t, Holder>>;  // by slot index
  Holders SlotHolders() const;
  static std::vector<Slot> SlotsOf(const NodeEntry& node, const Holders& holders);  // with computed states

  // ---- views.cc ----
  Job View(const JobEntry& job) const;
  Node View(const NodeEntry& node, const Holders& holders) const;
  struct Waiting {
    JobId job;
    uint32_t position;
    std::string reason;  // why it waits now
  };
  // In queue order: `only` one job, or all.
  std::vector<Waiting> WaitingJobs(const JobId& only = JobId()) const;
  Desired DesiredFor(const NodeId& node) const;
  muster::Stop MakeStop(EndReason reason, const Job& job) const;
  Assignment MakeAssignment(const JobEntry& job, const Generation& generation, const RankPlacement& rank) const;

  // ---- rows.cc ----
  absl::Status Load(const std::vector<Row>& rows, Now now);
  absl::Status LoadRow(const Row& row);
  absl::Status CheckRows() const;
  void Arm(Now now);                                        // starts timers after a recovery
  void KeepTimeBreakdowns(const Transaction& transaction);  // of the jobs to be written
  void Write(const Transaction& transaction, Outcome& outcome) const;

  // In jobs.cc: keep `folders`, when a job is added or removed.
  void AddFolder(const Job& job);
  void RemoveFolder(const Job& job);
  // Why a new job cannot have the (expanded) checkpoint.path of `spec`; empty: it can.
  std::string FolderConflict(const JobSpec& spec) const;

  JobEntry* FindJob(const JobId& id);
  NodeEntry* FindNode(const NodeId& id);
  JobEntry* NeedJob(const JobId& id, Transaction& transaction);  // sets NotFound
  NodeEntry* NeedNode(const NodeId& id, Transaction& transaction);

  Options options;
  std::map<JobId, JobEntry> jobs;
  std::map<NodeId, NodeEntry> nodes;
  std::map<std::string, JobId> by_request;
  // The normalized checkpoint.path of every job that has one. In the store of an older Muster jobs may share one.
  std::set<std::pair<std::string, JobId>> folders;
  Plans plans;
  uint64_t next_sequence = 1;

  // Work left over from earlier events. In memory only: after a restart the nodes' states show which to empty, and
  // workers send full reports.
  struct Report {
    NodeId node;
    std::string incarnation;
    std::optional<ObservedRank> rank;  // none: marks the end of a full report
  };
  std::deque<Report> inbox;
  std::set<NodeId> emptying;              // draining, leaving or LOST nodes that may still have ranks
  std::optional<SteadyTime> more_work;    // the last Transaction was full
  std::optional<SteadyTime> schedule_at;  // when to run the next scheduling pass
  bool settled = false;                   // the last scheduling pass tried every job that it should
};

// Records that the job has durably reached `step`. True if that is new; restarts before it then no longer count.
bool AdvanceProgress(Job& job, uint64_t step);

inline constexpr size_t kGenerationsKept = 50;  // so few that a job and its generations are deleted in one commit

std::string JobKey(const JobId& job);
std::string GenerationKey(const JobId& job, uint64_t generation);
std::string NodeKey(const NodeId& node);

}  // namespace muster::core
