// What a Core holds, and the operations that its event handlers share. Private to coordinator/core.
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

// One Handle call's results: which records changed, what to tell, what to do.
class Turn {
 public:
  explicit Turn(Now now) : now(now) {}

  // No room for another step of work in this commit: it is left for the next.
  bool Full() {
    constexpr size_t kLimit = 100, kLargestStep = 10;
    const size_t used = jobs.size() + generations.size() + nodes.size() + deleted_keys.size() + events.size();
    work_left |= used + kLargestStep > kLimit;
    return work_left;
  }

  // Nothing that is stored, told or done.
  bool Empty() const {
    return jobs.empty() && generations.empty() && nodes.empty() && desired.empty() && deleted_keys.empty() &&
           events.empty() && actions.empty() && !work_left;
  }

  void Touch(const JobId& job) { jobs.insert(job); }
  void Touch(const JobId& job, uint64_t generation) { generations.insert({job, generation}); }
  void Touch(const NodeId& node) { nodes.insert(node); }
  void Tell(const JobEntry* job, uint64_t generation, const std::string& node, const std::string& kind,
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
  void On(const SubmitJob& event, Turn& turn);
  void On(const CancelJob& event, Turn& turn);
  void On(const PauseJob& event, Turn& turn);
  void On(const ResumeJob& event, Turn& turn);
  void On(const DeleteJob& event, Turn& turn);
  void On(const TraceJob& event, Turn& turn);
  void On(const CheckpointJob& event, Turn& turn);  // wishes.cc
  // A generation of the job has ended with `reason`: what the job becomes.
  void AfterGeneration(JobEntry& job, const GenerationMachine& generation, Turn& turn);
  void Requeue(JobEntry& job, const std::string& why, absl::Duration delay, Turn& turn);
  void SpendRestart(JobEntry& job, Turn& turn);
  absl::Duration Backoff(const Job& job) const;
  void Rest(JobEntry& job, Turn& turn);  // into PAUSED
  void ChangeIntent(JobEntry& job, StopIntent intent, const std::string& why, Turn& turn);
  void Finish(JobEntry& job, Turn& turn, const std::string& kind, const std::string& message);
  // The one way to stop a generation: cancel, pause, drain, failure, loss. `why` is for people. A wish of the user's
  // overrides what else the job was stopping for; otherwise one that is stopping already goes on as it is.
  void Stop(JobEntry& job, EndReason reason, StopIntent intent, const std::string& why, Turn& turn);

  // ---- generations.cc ----
  void On(const RankRecord& event, Turn& turn);
  void On(const RankArrived& event, Turn& turn);
  void Schedule(Turn& turn);  // places what can be placed
  // After every event: the queue is looked at, or in the next tick.
  void ScheduleFor(const Event& event, Turn& turn);
  // Where the job starts, and as what, or nothing: it waits, or it cannot be laid out, and has failed.
  struct Start {
    scheduler::Decision decision;
    Planned plan;
  };
  std::optional<Start> FindStart(JobEntry& job, scheduler::Pass& pass, Turn& turn);
  // None: refused there, and that is remembered. An error of a plan on all ranks: it never can be.
  absl::StatusOr<std::optional<Planned>> PlanOn(JobEntry& job, const scheduler::Decision& decision) const;
  void StartGeneration(JobEntry& job, Start start, Turn& turn);
  void RankReported(JobEntry& job, uint32_t rank, RankState state, Turn& turn);
  void RunIfAllDo(JobEntry& job, Turn& turn);
  // `fault`: the generation's end reason, if nobody asked for this exit.
  void RankEnded(JobEntry& job, uint32_t rank, RankExit exit, EndReason fault, Turn& turn);
  void EndGenerationOf(JobEntry& job, EndReason reason, Turn& turn);
  void Publish(JobEntry& job, const CheckpointWritten& written, Turn& turn);
  void ChangeDesiredOf(const GenerationMachine& generation, Turn& turn);
  std::vector<scheduler::Claim> Queue() const;  // in its order, those in back-off too
  static scheduler::Demand DemandOf(const JobEntry& job);
  Slots SlotsFor(const scheduler::Decision& decision) const;
  const Slot* SlotAt(const NodeId& node, uint32_t index) const;  // null: there is none
  void Measured(const RankPlacement& rank, double flops_per_second, Turn& turn);
  // Why it was refused on those slots; null: it was not.
  static const Unfit* RefusedOn(const JobEntry& job, const Slots& slots);
  std::vector<scheduler::NodeView> NodeViews() const;

  // ---- hangs.cc ----
  Timeouts TimeoutsOf(const Job& job) const;
  absl::Duration StopDeadline(const Job& job, EndReason reason) const;
  // The newest generation has finished `step`.
  void NoteStep(JobEntry& job, uint64_t step, Turn& turn);
  static void NoteProgress(JobEntry& job, const NodeEntry& node, const ObservedRank& seen, SteadyTime now);
  void CheckHang(JobEntry& job, uint32_t reporter, Turn& turn);
  absl::Duration HangLimitOf(const JobEntry& job, const JobEntry::Progress& furthest) const;
  void FailHung(JobEntry& job, const RankPlacement& culprit, const JobEntry::Progress& progress, Turn& turn);
  static void AddToFault(JobEntry& job, uint32_t rank, RankExit& exit, Turn& turn);

  // ---- resize.cc ----
  // Ranks that suffice for it now.
  static uint32_t LeastRanks(const JobEntry& job);
  static bool RunsOnFewer(const JobEntry& job);
  // Slots for more ranks are free, the planner takes them, and nobody in the queue can use them.
  bool HasRoomToGrow(JobEntry& job);
  void CheckGrowth(JobEntry& job, Turn& turn);

  // ---- nodes.cc ----
  void On(const NodeConnected& event, Turn& turn);
  void On(const NodeDisconnected& event, Turn& turn);
  void On(const NodeObserved& event, Turn& turn);
  void On(const DrainNode& event, Turn& turn);
  void On(const UndrainNode& event, Turn& turn);
  void On(const Tick& event, Turn& turn);
  // So many nodes are away at once that their network, or this machine's, is likelier to be at fault than they.
  std::string ManyAway() const;  // "7 of 20 nodes"; empty: no
  void GiveUp(const NodeId& id, NodeEntry& node, const std::string& many_away, Turn& turn);
  absl::Status CheckCurrent(const RankId& rank) const;
  // Ranks that do not run yet, have not come to the rendezvous, and keep waiting those that have.
  static std::vector<uint32_t> MissingRanks(const JobEntry& job);
  static std::string NamesOfMissing(const JobEntry& job);
  void CheckStart(JobEntry& job, Turn& turn);
  void CheckStop(JobEntry& job, Turn& turn);
  absl::Status CheckIdentity(const Node& node) const;
  void ReadInbox(Turn& turn);
  void Observe(const NodeId& node, const ObservedRank& seen, Turn& turn);
  std::vector<ObservedRank> Unreported(const NodeId& node, const std::set<RankId>& reported, Turn& turn);
  // Stops what runs on draining nodes, gives up what ran on lost ones.
  void EmptyNodes(Turn& turn);
  void LoseRanks(JobEntry& job, const NodeId& node, Turn& turn);
  struct Holder {
    JobId job;
    SlotState state;
  };
  using Holders = std::map<NodeId, std::map<uint32_t, Holder>>;  // of slots
  Holders SlotHolders() const;
  static std::vector<Slot> SlotsOf(const NodeEntry& node, const Holders& holders);  // with their computed state

  // ---- views.cc ----
  Job View(const JobEntry& job) const;
  Node View(const NodeEntry& node, const Holders& holders) const;
  struct Waiting {
    JobId job;
    uint32_t position;
    std::string reason;  // why, as the scheduler sees it at this instant
  };
  // In the queue's order: `only` one, or all.
  std::vector<Waiting> WaitingJobs(const JobId& only = JobId()) const;
  Desired DesiredFor(const NodeId& node) const;
  muster::Stop MakeStop(EndReason reason, const Job& job) const;
  Assignment MakeAssignment(const JobEntry& job, const Generation& generation, const RankPlacement& rank) const;

  // ---- rows.cc ----
  absl::Status Load(const std::vector<Row>& rows, Now now);
  absl::Status LoadRow(const Row& row);
  absl::Status CheckRows() const;
  void Arm(Now now);                   // timers, after a recovery
  void KeepLedgers(const Turn& turn);  // of the jobs that are about to be written
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

  // What is left of earlier events. Memory only: after a restart the nodes' states show what is to be emptied, and
  // workers report in full.
  struct Report {
    NodeId node;
    std::string incarnation;
    std::optional<ObservedRank> rank;  // none: that was the full report
  };
  std::deque<Report> inbox;
  std::set<NodeId> emptying;  // draining, leaving or LOST, as far as it is not known that no rank is left there
  std::optional<SteadyTime> more_work;  // the last Turn was full
  std::optional<SteadyTime> look_at;    // the queue, if there is one
  bool settled = false;                 // the last look at it tried all that it would try
};

// The job is as far as `step` for good; true if that is news, and then no restart before it counts any more.
bool Gain(Job& job, uint64_t step);

inline constexpr size_t kGenerationsKept = 50;  // with its job, all of them are deleted in one commit

std::string JobKey(const JobId& job);
std::string GenerationKey(const JobId& job, uint64_t generation);
std::string NodeKey(const NodeId& node);

}  // namespace muster::core
