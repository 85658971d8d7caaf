// The coordinator's brain: state machines of jobs, generations and nodes. Deterministic: no clock, lock, thread, gRPC,
// randomness or disk; the same events at the same times give the same outcomes, byte for byte.
//
//   Core core = Core::Recover(options, rows, now).value();
//   Outcome out = core.Handle(SubmitJob{...}, now);
//   // the shell commits out.rows and out.events in one transaction, then answers, then does out.actions, in order
//
// Not thread-safe: one thread owns it. A failed commit ends the process, so a Core is never ahead of its disk.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/timeouts.h"
#include "coordinator/core/planner.h"
#include "proto/job.pb.h"
#include "proto/records.pb.h"
#include "proto/worker.pb.h"

namespace muster::core {

// ---- Events. Requests of users carry what is random or checked outside. ----
struct SubmitJob {
  std::string request_id;
  std::string owner;
  JobSpec spec;        // resolved
  std::string suffix;  // four random characters; the job's id is <name>-<suffix>
};
struct CancelJob {
  JobId job;
};
struct PauseJob {
  JobId job;
};
struct ResumeJob {
  JobId job;
};
struct DeleteJob {
  JobId job;
};
// Lets those ranks of a running job record their next steps. Kept in memory only: after a restart nobody waits for it.
struct TraceJob {
  JobId job;
  StepTraceRequest request;
  std::vector<uint32_t> ranks;
};
// Asks a running job's rank 0 for a checkpoint after the step under way. `request` is of nobody else, and not 0. Kept
// in memory only: after a restart nobody waits for it. FailedPrecondition: it does not run, or has no folder for it.
struct CheckpointJob {
  JobId job;
  uint64_t request_number = 0;
};
struct DrainNode {
  NodeId node;
};
struct UndrainNode {
  NodeId node;
};
// A worker's stream said Hello. Refused with AlreadyExists when another live daemon holds the id (with a different
// boot or host) or one of its devices.
struct NodeConnected {
  Node node;
};
// The stream of that incarnation broke; ignored if a newer one is connected.
struct NodeDisconnected {
  NodeId node;
  Incarnation incarnation;
};
// `full` is what the node has as of Welcome: a rank that was running and is not in it has vanished, one that is to stop
// and is not in it was never started; one that is to start may not have been begun with. A worker reports a rank as
// EXITED only when all its records are acknowledged, so an exit never overtakes a checkpoint or the Finished record. A
// node that was known before is told what is desired of it, and given new ranks, only after its first full report.
struct NodeObserved {
  NodeId node;
  Incarnation incarnation;
  Observed observed;
};
// A record of a rank that matters to state: running, checkpoint, finished. Stale generations are refused
// (FailedPrecondition), which the shell acknowledges all the same: the record is of no use any more.
struct RankRecord {
  RankId rank;
  Record record;
};
// A rank has called at the rendezvous of its generation, for the first time. In memory only: after a restart it calls
// again. Refused like a record of a stale generation.
struct RankArrived {
  RankId rank;
};
struct Tick {};

using Event = std::variant<SubmitJob, CancelJob, PauseJob, ResumeJob, DeleteJob, TraceJob, CheckpointJob, DrainNode,
                           UndrainNode, NodeConnected, NodeDisconnected, NodeObserved, RankRecord, RankArrived, Tick>;

// ---- Actions: done after the commit, in order; doing one twice is harmless. ----
struct SendDesired {
  NodeId node;
};  // DesiredFor(node) changed
struct CloseStream {
  NodeId node;
  Incarnation incarnation;
  std::string why;
};
struct EndGeneration {
  JobId job;
  uint64_t generation;
};  // its rendezvous keys are gone
struct ForgetJob {
  JobId job;
};  // its history is to go
using Action = std::variant<SendDesired, CloseStream, EndGeneration, ForgetJob>;

struct RowChange {
  std::string key;                   // "job/<id>", "generation/<job>/<10 digits>", "node/<id>"
  std::optional<std::string> value;  // none: delete
};

struct Outcome {
  absl::Status status;  // not OK: the event was refused and changed nothing
  std::vector<RowChange> rows;
  std::vector<StateEvent> events;  // the shell numbers and stores them with the rows
  std::vector<Action> actions;
  std::string reason;  // one line, for the log and tests
  JobId job;           // of SubmitJob
};

struct Options {
  Timeouts timeouts = Derive(absl::Seconds(10));
  absl::Duration backoff_base = absl::Seconds(1);  // doubles per restart without progress
  absl::Duration backoff_max = absl::Minutes(1);
  uint32_t max_queued_jobs = 10'000;
  // A job with min_ranks that has never run waits so long for all its ranks.
  absl::Duration whole_wait = absl::Seconds(5);
  // One that runs on fewer is not made larger before this, since its generation began to run; from then on slots for
  // more have to be free for so long.
  absl::Duration grow_after = absl::Minutes(5);
  absl::Duration grow_settle = absl::Seconds(30);
  Planner planner = PlanByStrategies;
  OpNamer op_namer = NameOpByStrategies;
};

// The service's time-outs as they are for such a job.
Timeouts TimeoutsOf(const Timeouts& service, const JobSpec& spec);

// The job's spec as a generation runs it: strategy: auto is what it was resolved to.
JobSpec SpecOf(const Job& job, const Generation& generation);
// The slots of a generation as they were when it was placed.
Slots PlacedSlots(const Generation& generation);

struct Row {
  std::string key;
  std::string value;
};

class Core {
 public:
  // From the rows of a store, all of them. DataLoss: a row that does not parse or contradicts another; names it.
  static absl::StatusOr<std::unique_ptr<Core>> Recover(const Options& options, const std::vector<Row>& rows, Now now);
  ~Core();

  // At most 100 rows and events together, so that an outcome fits into one commit of any store. What one event begins
  // and does not fit (a lost node with a hundred jobs) is done by the ticks that NextTick then asks for at once; so is
  // the look at the queue that news from nodes and ranks calls for.
  Outcome Handle(const Event& event, Now now);

  // When the next Tick could change something. After a Tick it is later than that, or equal to it when work is left, so
  // that a shell that ticks when it is due does not turn in circles. Nothing: never, until another event.
  std::optional<SteadyTime> NextTick() const;

  // ---- Views. Valid until the next Handle. ----
  // By id, else by unique prefix of ids. NotFound; FailedPrecondition naming the candidates.
  absl::StatusOr<JobId> Find(const std::string& id_or_prefix) const;
  // As it is on disk: without what looking through the queue would tell. Null: there is none.
  const Job* Stored(const JobId& job) const;
  // With queue_position and reason as of now, and its time_breakdown up to `at`, or to its last change.
  absl::StatusOr<Job> GetJob(const JobId& job, std::optional<SteadyTime> at = std::nullopt) const;
  std::vector<Job> ListJobs(bool ended_too) const;  // running, then the queue in its order, then ended, newest first
  std::vector<Generation> ListGenerations(const JobId& job) const;  // newest first
  std::vector<Node> ListNodes() const;                              // by id, slot states computed
  absl::StatusOr<Node> GetNode(const NodeId& node) const;
  // Full desired state of a node, with its revision. A new rank may be desired on a slot where one of a lost generation
  // is still being killed: the worker waits for the slot.
  Desired DesiredFor(const NodeId& node) const;
  // False: since its Hello the node has not told in full what it has, so it must not hear what is desired of it yet.
  bool HasReported(const NodeId& node) const;
  // Where such a job would start now: a node per rank, or none and why. Then `slots` are those that it would get if
  // nothing ran, or none. Jobs that wait are not looked at.
  struct Placing {
    std::vector<NodeId> nodes;
    Slots slots;
    std::string reason;
  };
  Placing WouldPlace(const JobSpec& resolved) const;
  // True if it is the job's newest generation and has not ended.
  bool IsCurrent(const JobId& job, uint64_t generation) const;
  // OK: of the newest generation, which has not ended, and there is such a rank. FailedPrecondition says what is wrong.
  absl::Status CheckCurrent(const RankId& rank) const;
  bool HasArrived(const RankId& rank) const;
  // That the newest generation has told of; 0: none, or there is no such job.
  uint64_t HighestStep(const JobId& job) const;
  // How the job's newest generation is laid out. Null: there is none, or this build would lay it out otherwise than it
  // was started.
  const Planned* PlanOf(const JobId& job) const;
  // "rank 3 on node-b has not come yet", of the newest generation: whom the others wait for. Empty: nobody, or nobody
  // has come.
  std::string Missing(const JobId& job) const;
  // What a node's word about a rank is worth.
  enum class RankStatus {
    kNone,     // that rank was never placed on that node, or its job was deleted, or its generation is forgotten
    kPast,     // its generation has a successor
    kCurrent,  // it is of the job's newest generation
  };
  RankStatus StatusOf(const RankId& rank, const NodeId& node) const;

 private:
  struct State;
  explicit Core(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace muster::core
