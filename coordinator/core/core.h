// The decisions of the coordinator: state machines of jobs, generations and nodes. Deterministic: no clock, lock,
// thread, gRPC, randomness or disk. The same events at the same times give the same outcomes, byte for byte.
//
//   Core core = Core::Recover(options, rows, now).value();
//   Outcome out = core.Handle(SubmitJob{...}, now);
//   // the shell commits out.rows and out.events in one transaction, then answers, then does out.actions, in order
//
// Not thread-safe: one thread owns it. A failed commit ends the process, so a Core is never ahead of its disk.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/timeouts.h"
#include "coordinator/core/job_plan.h"
#include "coordinator/core/wanted_plans.h"
#include "proto/job.pb.h"
#include "proto/records.pb.h"
#include "proto/worker.pb.h"

namespace muster::core {

// ---- Events. A user's request carries everything that is random or was checked elsewhere. ----
// FailedPrecondition: checkpoint.path belongs to another job; an ended job keeps it until it is deleted.
// InvalidArgument, PermissionDenied: its project (Projects::For), or reservation (CheckReservation). With `sync` in the
// spec a job for each replica; a checkpoint.path without {job} gets a folder for each.
struct SubmitJob {
  static constexpr absl::string_view kName = "submit";
  std::string request_id;  // unique among those of the owner
  std::string owner;
  JobSpec spec;  // resolved; placeholders in its paths are expanded here, where the job gets its id
  // Four random characters; the job's id is <name>-<suffix>, that of a replica <name>-<suffix>-<replica>.
  std::string suffix;
  std::string secret = {};  // of the replicas' ranks: random
  // The plan that checked the spec. If the job can start on exactly those slots, it is not made again.
  std::optional<PlanReady> plan = std::nullopt;
};
struct CancelJob {
  static constexpr absl::string_view kName = "cancel";
  JobId job;
};
struct PauseJob {
  static constexpr absl::string_view kName = "pause";
  JobId job;
};
struct ResumeJob {
  static constexpr absl::string_view kName = "resume";
  JobId job;
};
struct DeleteJob {
  static constexpr absl::string_view kName = "delete";
  JobId job;
};
// InvalidArgument: a label, or there would be too many. ResourceExhausted: `user` has made as many changes by LabelJob
// and NoteJob within a minute as submits are allowed; empty: not counted.
struct LabelJob {
  static constexpr absl::string_view kName = "label";
  JobId job;
  std::vector<std::string> set;     // "team=nlp"
  std::vector<std::string> remove;  // keys
  std::string user = {};
};
// InvalidArgument: the text is too long, or is not one line. ResourceExhausted: as LabelJob.
struct NoteJob {
  static constexpr absl::string_view kName = "note";
  JobId job;
  std::string text;
  std::string user = {};
};
// A rank of a run with local steps asks about an exchange. Errors as Workers.Sync (proto/workers_service.proto).
struct SyncRank {
  static constexpr absl::string_view kName = "sync rank";
  RankId rank;
  SyncRequest request;
};
// Asks these ranks of a running job to record their next steps. Kept in memory only: a restart ends the caller's wait.
struct TraceJob {
  static constexpr absl::string_view kName = "trace";
  JobId job;
  StepTraceRequest request;
  std::vector<uint32_t> ranks;
};
// Asks rank 0 of a running job for a checkpoint after the current step. `request_number` is unique and not 0. Kept in
// memory only: a restart ends the caller's wait. FailedPrecondition: the job does not run, or has no checkpoint.path.
struct CheckpointJob {
  static constexpr absl::string_view kName = "checkpoint";
  JobId job;
  uint64_t request_number = 0;
};
struct DrainNode {
  static constexpr absl::string_view kName = "drain";
  NodeId node;
};
struct UndrainNode {
  static constexpr absl::string_view kName = "undrain";
  NodeId node;
};
// FailedPrecondition: it is LIVE, or a generation that has not ended has ranks there, of which a LOST node's have
// exited. No such node: OK.
struct ForgetNode {
  static constexpr absl::string_view kName = "forget node";
  NodeId node;
};
// Replaces the project of that name, or adds it. InvalidArgument: a field is wrong, the message says which.
// ResourceExhausted: there are too many.
struct SetProject {
  static constexpr absl::string_view kName = "set project";
  Project project;
};
// FailedPrecondition: it has jobs that have not ended. No such project: OK.
struct DeleteProject {
  static constexpr absl::string_view kName = "delete project";
  std::string name;
};
// Replaces the text of the template of that name, or adds it as one of `user`, who must be allowed to. InvalidArgument:
// the name or the text. ResourceExhausted: there are too many, in all or of the user; or as LabelJob.
struct SetTemplate {
  static constexpr absl::string_view kName = "set template";
  std::string name;
  std::string text;
  std::string user;
};
// No such template: OK.
struct DeleteTemplate {
  static constexpr absl::string_view kName = "delete template";
  std::string name;
};
// Replaces the reservation of that name, or adds it. No job that runs is stopped. InvalidArgument: a field is wrong,
// the message says which. NotFound: one of its nodes. FailedPrecondition: one of its nodes is in another reservation at
// that time, or a job runs in it on a node that it would lose, or while it would begin later. ResourceExhausted: there
// are too many.
struct SetReservation {
  static constexpr absl::string_view kName = "set reservation";
  Reservation reservation;
};
// FailedPrecondition: jobs run in it. No such reservation: OK.
struct DeleteReservation {
  static constexpr absl::string_view kName = "delete reservation";
  std::string name;
};
// A worker opened its stream with Hello. AlreadyExists: another live daemon (with a different boot or host) holds the
// node id or one of its devices.
struct NodeConnected {
  static constexpr absl::string_view kName = "node connected";
  Node node;
  std::map<JobId, uint64_t> generations = {};         // Hello.generations
  std::optional<Preflight> preflight = std::nullopt;  // likewise
  std::optional<absl::Time> time = std::nullopt;
};
// The stream of this incarnation broke. Ignored if a newer incarnation is connected.
struct NodeDisconnected {
  static constexpr absl::string_view kName = "node disconnected";
  NodeId node;
  Incarnation incarnation;
};
// A full report lists the node's ranks as of Welcome. A rank that was running and is not listed has vanished; a rank to
// be stopped that is not listed never started; a rank to be started may simply not have started yet. A worker reports a
// rank as EXITED only after all its records are acknowledged, so an exit never overtakes a checkpoint or the Finished
// record. A node that reconnects receives its desired state and new ranks only after its first full report.
struct NodeObserved {
  static constexpr absl::string_view kName = "node observed";
  NodeId node;
  Incarnation incarnation;
  Observed observed;
};
// A rank's record that changes state: running, checkpoint, finished. FailedPrecondition: a stale generation; the shell
// acknowledges the record anyway, since it has no further use.
struct RankRecord {
  static constexpr absl::string_view kName = "rank record";
  RankId rank;
  Record record;
};
// A rank called at the rendezvous of its generation for the first time. In memory only: after a restart it calls again.
// FailedPrecondition: a stale generation.
struct RankArrived {
  static constexpr absl::string_view kName = "rank arrived";
  RankId rank;
};
// First of all events, when the store is a restored backup: the jobs that it knows may have had generations since that
// it does not, so each skips Options.numbers_skipped, and so does each run of exchanges between replicas.
struct StoreRestored {
  static constexpr absl::string_view kName = "store restored";
};
struct Tick {
  static constexpr absl::string_view kName = "tick";
};

using Event = std::variant<SubmitJob, CancelJob, PauseJob, ResumeJob, DeleteJob, LabelJob, NoteJob, TraceJob,
                           CheckpointJob, DrainNode, UndrainNode, ForgetNode, SetProject, DeleteProject, SetReservation,
                           DeleteReservation, SetTemplate, DeleteTemplate, NodeConnected, NodeDisconnected,
                           NodeObserved, RankRecord, RankArrived, SyncRank, PlanReady, StoreRestored, Tick>;
inline absl::string_view NameOf(const Event& event) {
  return std::visit([](const auto& e) { return e.kName; }, event);
}

// ---- Actions: executed after the commit, in order. Executing one twice is harmless. ----
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
};  // removes its rendezvous keys
struct ForgetJob {
  JobId job;
};  // removes its metrics and logs
struct AskSyncAgain {
  std::string run;
  std::optional<uint32_t> source_rank = std::nullopt;  // only requests with this source_rank; none: all
};  // SyncRank may have another reply for ranks of the run whose last one had nothing for them to do
using Action = std::variant<SendDesired, CloseStream, EndGeneration, ForgetJob, AskSyncAgain, CancelPlan, RequestPlan>;

struct RowChange {
  // "job/<id>", "generation/<job>/<10 digits>", "node/<id>", "run/<id>", "project/<name>", "usage/<project>",
  // "reservation/<name>", "template/<name>"
  std::string key;
  std::optional<std::string> value;  // none: delete
};

struct Outcome {
  absl::Status status;  // not OK: the event was refused and changed nothing
  std::vector<RowChange> rows;
  std::vector<StateEvent> events;  // the shell numbers and stores them with the rows
  std::vector<Action> actions;
  std::string reason;  // one line, for the log and tests
  JobId job;           // of SubmitJob; the first, of several replicas
  SyncReply sync;      // of SyncRank
  // Of SyncRank, if `sync` has nothing for the rank to do: the same event has the same reply until then, or until an
  // AskSyncAgain.
  std::optional<SteadyTime> sync_waits_until;
};

struct Options {
  Timeouts timeouts = Derive(absl::Seconds(10));
  absl::Duration backoff_base = absl::Seconds(1);  // doubles per restart without progress
  absl::Duration backoff_max = absl::Minutes(1);
  uint32_t max_queued_jobs = 10'000;
  // Of one user; 0: no limit. A job beyond the running ranks waits without holding back others.
  uint32_t max_queued_jobs_of_user = 5'000;
  uint32_t max_running_ranks_of_user = 0;
  uint32_t max_submits_of_user = 1'200;  // within a minute; as many changes of labels, notes and templates
  int32_t lowest_priority = std::numeric_limits<int32_t>::min();
  int32_t highest_priority = std::numeric_limits<int32_t>::max();
  // After that time half of what a project or user has used counts for the order of the queue.
  absl::Duration fair_share_half_life = absl::Hours(24 * 7);
  // Whether a waiting job may stop running ones of lower priority. Projects reclaim their quota in any case. No job is
  // preempted before its generation has run for so long.
  bool preempt_lower_priority = false;
  absl::Duration preemption_min_run = absl::Minutes(10);
  // Beyond, those that ended first are deleted with their history; so are those that ended so long ago, in one run of
  // the coordinator. Infinite: for ever.
  uint32_t max_ended_jobs = 100'000;
  absl::Duration keep_ended_for = absl::InfiniteDuration();
  // A node on which that much went wrong within the window is drained: jobs with a fault of one of their ranks there,
  // plus how often contact with it was lost. Not if more than this share of the nodes, but at least one, would be
  // drained so.
  uint32_t node_fault_limit = 3;
  absl::Duration node_fault_window = absl::Minutes(10);
  double most_drained_share = 0.3;
  // A node that has been LOST for so long, in one run of the coordinator, is forgotten. Infinite: never.
  absl::Duration forget_lost_after = absl::Hours(24 * 7);
  // How long a job with min_ranks that has never run waits for all its ranks.
  absl::Duration whole_wait = absl::Seconds(5);
  // A queued job that could not start on these nodes even if they were idle gets an event after this time.
  absl::Duration never_starts_after = absl::Minutes(1);
  // A job that runs on fewer ranks is not resized before its generation has run this long; after that, slots for more
  // ranks must stay free for grow_settle.
  absl::Duration grow_after = absl::Minutes(5);
  absl::Duration grow_settle = absl::Seconds(30);
  // So many numbers are not given to generations of a job, or to exchanges of a run, after the highest that this store
  // knows of, where it is a restored backup, or a worker has seen a higher one: more than a job has between a backup
  // and its restore, and another number in each run of the coordinator, since one backup may be restored more than
  // once.
  uint64_t numbers_skipped = 1000;
  // The ranks of a new generation measure the links between its nodes that were not measured for so long, or were slow.
  absl::Duration links_valid_for = absl::Hours(1);
  // How long a job holds slots, and its time_breakdown, are stored at least so often, so that a restart of the
  // coordinator loses no more; of jobs that hold none, a sixtieth as often. Infinite: only when the job changes.
  absl::Duration store_times_every = absl::Minutes(1);
};

// The service's time-outs, adjusted to the job's detection_seconds.
Timeouts TimeoutsOf(const Timeouts& service, const JobSpec& spec);

// The job's spec as this generation runs it, with `strategy: auto` replaced by the strategy that was chosen.
JobSpec SpecOf(const Job& job, const Generation& generation);
// The generation's slots as they were at placement.
Slots PlacedSlots(const Generation& generation);

struct Row {
  std::string key;
  std::string value;
};

class Core {
 public:
  // From all rows of a store. DataLoss: a row does not parse or contradicts another one; the message names it.
  static absl::StatusOr<std::unique_ptr<Core>> Recover(const Options& options, const std::vector<Row>& rows, Now now);
  ~Core();

  // An outcome has at most 100 rows and events together, so that it fits into one commit of any store. Work that does
  // not fit (a lost node with a hundred jobs) is left to later ticks, which NextTick makes due at once. The scheduling
  // pass that a report of a node or rank requires is also left to the next tick.
  Outcome Handle(const Event& event, Now now);

  // When the next Tick could change something; nullopt: not before another event. After a Tick it is later than that
  // Tick, or equal to it if work is left, so a shell that ticks when due never spins.
  std::optional<SteadyTime> NextTick() const;

  // ---- Views. Valid until the next Handle. ----
  // By id, else by the name of one job, else by a unique prefix of an id. NotFound. FailedPrecondition: several jobs
  // match; the message names them.
  absl::StatusOr<JobId> Find(const std::string& id_or_prefix) const;
  // Likewise, and all replicas of a run by its id or a prefix of it that fits nothing else. Of several jobs with the
  // prefix, only those count that the request can be meant for. FailedPrecondition also: kLive, and all have ended,
  // unless they are the replicas of one run, which may be a retry.
  enum class Among { kAll, kLive, kEnded };
  absl::StatusOr<std::vector<JobId>> FindReplicas(const std::string& id_or_prefix, Among among = Among::kAll) const;
  // The job as it is on disk, without the reason and position that a look through the queue gives. Null: no such job.
  const Job* Stored(const JobId& job) const;
  // With queue_position and reason as of now, and its times (time_breakdown, held_seconds, slot_seconds) up to `at`, or
  // to its last change. NotFound.
  absl::StatusOr<Job> GetJob(const JobId& job, std::optional<SteadyTime> at = std::nullopt) const;
  std::vector<Job> ListJobs(bool ended_too) const;  // running, then the queue in its order, then ended, newest first
  struct JobPage {
    std::vector<Job> jobs;
    std::string next;  // the page after this one; empty: there is none
  };
  // A part of that list: from `page` on (empty: the first), at most so many jobs and, except for the first, bytes. A
  // job that moves between two calls may be in both pages or in none. InvalidArgument: no such page.
  // `at`: as GetJob, for jobs that hold slots. `selected`: only jobs for which it is true; null: all. With it a page
  // ends after a look at kLookedAtOnce jobs, so it may have none and still be followed by another.
  static constexpr size_t kLookedAtOnce = 2000;
  absl::StatusOr<JobPage> ListJobs(bool ended_too, const std::string& page, size_t rows, size_t bytes,
                                   std::optional<SteadyTime> at = std::nullopt,
                                   const std::function<bool(const Job&)>& selected = nullptr) const;
  std::map<JobState, uint64_t> CountJobs() const;
  std::vector<JobId> EndedJobs() const;  // in the order of their submission
  // Newest first, at most so many of the newest.
  std::vector<Generation> ListGenerations(const JobId& job, size_t most = SIZE_MAX) const;
  // Where the ranks of the newest generation were at their last reports, by rank; none if it has ended.
  std::vector<RankProgress> ListProgress(const JobId& job) const;
  std::vector<Project> ListProjects() const;                    // by name, with held slots and use up to the last event
  std::vector<Reservation> ListReservations() const;            // by start, as of the last event
  std::vector<Template> ListTemplates() const;                  // by name, without their texts
  const Template* FindTemplate(const std::string& name) const;  // null: there is none
  std::vector<Node> ListNodes() const;                          // by id, slot states computed
  std::vector<NodeLink> ListLinks(const JobId& job) const;      // measured, between the nodes of its newest generation
  absl::StatusOr<Node> GetNode(const NodeId& node) const;
  std::optional<Cpu> CpuOf(const NodeId& node) const;  // none: no such node
  // The full desired state of a node, with its revision. A new rank may be desired on a slot where a rank of a lost
  // generation is still being killed; the worker waits for the slot.
  Desired DesiredFor(const NodeId& node) const;
  // What is kept in memory of all exchanges between replicas, in entries of a few words each.
  size_t EntriesOfExchanges() const;
  // Whether the node has sent a full report since its Hello. Until then no desired state is sent to it.
  bool HasReported(const NodeId& node) const;
  // Where a job with this spec would start now: a node per rank, or none and the reason. If none, `slots` are those
  // that it would get in an idle cluster, or none. Queued jobs are ignored. Only slots of at least `slot_bytes` are
  // considered, and with `whole` only as many as the job has ranks.
  struct Placing {
    std::vector<NodeId> nodes;
    Slots slots;
    std::string reason;
    std::string domains;  // "rack r1": where `nodes` are, of a job whose spec names a topology
  };
  Placing WouldPlace(const JobSpec& resolved, uint64_t slot_bytes = 0, bool whole = false) const;
  // Why SubmitJob would refuse such a job now: its checkpoint.path belongs to another job. Empty: it would not.
  std::string FolderConflict(const JobSpec& resolved) const;
  // True if it is the job's newest generation and has not ended.
  bool IsCurrent(const JobId& job, uint64_t generation) const;
  // FailedPrecondition: the generation is not the job's newest, or has ended, or has no such rank; the message says
  // which.
  absl::Status CheckCurrent(const RankId& rank) const;
  bool HasArrived(const RankId& rank) const;
  // The highest step that the newest generation reported; 0: none, or no such job.
  uint64_t HighestStep(const JobId& job) const;
  // The layout of the job's newest generation. Null: there is none, its plan is being made again (IsPlanPending), or
  // this build plans it differently from the build that started it.
  const Planned* PlanOf(const JobId& job) const;
  // The coordinator was restarted, and the plan of the job's newest generation is not there yet.
  bool IsPlanPending(const JobId& job) const;
  // Which ranks of the newest generation have not called at the rendezvous: "rank 3 on node-b has not arrived yet".
  // Empty: no rank is missing, or none has arrived.
  std::string Missing(const JobId& job) const;
  // Whether a node's report about a rank is current.
  enum class RankStatus {
    kNone,     // the rank was never placed on that node, or its job or generation was deleted
    kPast,     // a newer generation exists
    kCurrent,  // the rank belongs to the job's newest generation
  };
  RankStatus StatusOf(const RankId& rank, const NodeId& node) const;

 private:
  struct State;
  explicit Core(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace muster::core
