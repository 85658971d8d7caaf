// Checks the invariants. The judge sees every row that reaches the virtual disk, everything that the coordinator sends
// and everything that happens on the nodes, and keeps its own record of it. The first violation ends the run.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "coordinator/store/state.h"
#include "proto/job.pb.h"
#include "proto/worker.pb.h"

namespace muster::simulate {

// A generation's number may come twice: once in a history that a restored copy does not know, and again after it. Each
// generation has a name of its own here.
struct Ran {
  RankId rank;
  uint64_t name = 0;  // of its generation
  friend auto operator<=>(const Ran&, const Ran&) = default;
};

// A complete checkpoint on the nodes' shared disk.
struct WrittenCheckpoint {
  JobId job;
  uint64_t generation = 0;  // its name
  uint64_t step = 0;
  std::string directory;
  friend auto operator<=>(const WrittenCheckpoint&, const WrittenCheckpoint&) = default;
};

// A job, as the judge knows it from the committed rows.
struct JobAccount {
  std::string request;
  uint64_t sequence = 0;
  JobState state = JOB_STATE_UNSPECIFIED;
  uint64_t restarts = 0;
  std::map<uint64_t, Generation> generations;
  std::map<uint64_t, uint64_t> names;                 // of the generations
  uint64_t reported = 0;                              // the highest generation that a worker has reported this store
  std::set<uint64_t> ended;                           // ended generations, including deleted ones
  std::map<uint64_t, PublishedCheckpoint> published;  // ever, by step; without those that were damaged
  uint64_t progress_step = 0;
  uint64_t steps = 0;    // from its spec
  std::string folder;    // checkpoint.path
  bool refused = false;  // by its ranks, since the folder belongs to a deleted job
  uint32_t max_restarts = 0;
  Resources resources;
  uint32_t together = 1;  // ranks that must be on one node
  uint32_t multiple = 1;  // of which its number of ranks is one
  bool deleted = false;
  std::string owner, project, reason;
  std::string reservation;  // that it runs in
  double held_seconds = 0;  // by its generations that have ended
  absl::Duration time_limit = absl::InfiniteDuration();
  bool timed_out = false;                     // it failed by its time limit
  std::vector<JobId> after;                   // jobs that it comes after
  bool failed_with_one_before = false;        // it failed since one of these did
  std::map<uint64_t, SteadyTime> runs_since;  // of generations: when that was committed
  std::map<JobId, uint64_t> preempted_by;
  TimeBreakdown time_breakdown;
  SteadyTime submitted_at, ended_at;  // when it was committed
  uint64_t coordinator_starts = 0;    // before it was submitted
  uint64_t hung_generation = 0;       // the last generation that was reported as hung
  Failure failure;
};

// A run with local steps, likewise.
struct RunAccount {
  SyncRun run;
  // By fragment and exchange: the replicas that it was decided with, and their generations.
  std::vector<std::map<uint64_t, std::vector<std::pair<uint32_t, uint64_t>>>> decided;
};

// What the judge knows from the disk. It goes back with the disk when a copy of that is restored.
struct Books {
  std::map<JobId, JobAccount> jobs;
  std::map<std::pair<std::string, std::string>, JobId> requests;                 // by the owner and its request id
  std::map<std::pair<std::string, uint32_t>, std::pair<JobId, uint64_t>> slots;  // the generation that holds each slot
  std::set<JobId> cancelled;
  std::map<std::string, Project> projects;
  std::map<std::string, Reservation> reservations;
  std::map<std::string, RunAccount> runs;
  struct StreamEvent {
    uint64_t sequence;
    JobId job;
    std::string bytes;
  };
  std::vector<StreamEvent> stream;
};

class Judge {
 public:
  explicit Judge(const Clock* clock) : clock_(clock) {}

  bool failed() const { return !failure_.empty(); }
  // "invariant: what happened"; empty: no violation.
  const std::string& failure() const { return failure_; }
  void Fail(const std::string& invariant, const std::string& what);

  // The rules of preemption.
  void Expect(absl::Duration min_run, bool by_priority) {
    min_run_ = min_run;
    by_priority_ = by_priority;
  }

  // ---- The disk. ----
  // In commit order; each group has the changes of one event.
  void Committed(const std::vector<store::ChangeGroup>& groups);
  // A metric point was stored.
  void Stored(const JobId& job, const MetricPoint& point);
  // The disk was full: the point is lost. The next one of the job that is stored says how many were.
  void Dropped(const JobId& job) { ++dropped_[job]; }
  void ReportedDropped(const JobId& job, uint64_t items);
  Books Copy() const { return books_; }
  // The disk is an older copy from now on.
  void Restored(Books books);
  // How often that has happened: what an earlier coordinator has sent may still arrive.
  uint64_t restores() const { return restores_; }
  // Whether an earlier disk had the job, and this one does not.
  bool IsLost(const JobId& job) const { return lost_.contains(job) && !books_.jobs.contains(job); }

  // ---- What the coordinator sends. ----
  // To a node, on one stream; `last_revision` belongs to that stream.
  void DesiredSent(const Desired& desired, uint64_t& last_revision);
  // To a user: the request was accepted as this job.
  void Accepted(const std::string& owner, const std::string& request, const JobId& job);
  void MayBeDeleted(const JobId& job) { deletable_.insert(job); }
  void CancelAccepted(const JobId& job) { books_.cancelled.insert(job); }
  // To a worker: these records need not be sent again.
  void Acknowledged(const Ran& ran, const std::vector<Record>& records);
  // A worker is welcome. It has reported ranks of that generation of the job.
  void ReportedGeneration(const JobId& job, uint64_t generation);
  // To a reader of the whole stream, which has seen `position` events.
  void Read(const StateEvent& event, size_t& position);

  // ---- Exchanges of runs with local steps. ----
  // A rank's request, when the coordinator handles it, and what it replies.
  void Asked(const Ran& ran, const Sync& sync, const SyncRequest& request);
  void Replied(const Ran& ran, const Sync& sync, const SyncRequest& request, const SyncReply& reply);
  // What the coordinator keeps in memory of all exchanges.
  void KeptForExchanges(size_t entries);
  // A rank has applied an exchange, or caught up with it. `source`: of ranks that have the same share of the model.
  void Exchanged(const Ran& ran, const Sync& sync, uint32_t fragment, uint64_t exchange, uint32_t source,
                 uint64_t content);
  uint64_t restarts_in_exchanges() const;  // of the coordinator, while a replica offered
  uint64_t EventsOf(const std::string& kind) const;

  // ---- The nodes. ----
  void Written(const WrittenCheckpoint& checkpoint) { written_.insert(checkpoint); }
  // The ranks of the generation of that name train on from this step.
  void Resumed(const JobId& job, uint64_t name, uint64_t step) { resumed_[{job, name}] = step; }
  void Started(const Ran& rank, const std::string& node);
  void Ended(const Ran& rank) { running_.erase(rank); }
  // `seen`: its page shows less progress than the other ranks'.
  void Frozen(const Ran& rank, bool seen);
  void Thawed(const Ran& rank);
  void CoordinatorStarted();
  // A worker kills a rank that is not in its desired state.
  void KilledAsStale(const Ran& ran);

  const std::map<JobId, JobAccount>& jobs() const { return books_.jobs; }
  // Whether other jobs may wait for the job: it has completed, or still may.
  bool CanComplete(const JobId& job) const;
  // The name of a generation, or 0 if it is not on disk.
  uint64_t NameOf(const JobId& job, uint64_t generation) const;
  // Whether any job has, or had, that checkpoint.path.
  bool WasTaken(const std::string& folder) const;
  // Generations that have started in a reservation, and on nodes that were reserved for others later.
  uint64_t started_in_reservations() const { return started_in_reservations_; }
  uint64_t started_before_reservations() const { return started_before_reservations_; }
  size_t events() const { return books_.stream.size(); }
  uint64_t fingerprint() const { return fingerprint_; }
  // Of all commits and when they were made, without what the wall clock showed then. Counted only once asked for.
  void CountDecisions() { decisions_ = kFirstHash; }
  uint64_t decisions() const { return decisions_.value_or(0); }
  // Called when the cluster is quiet: checks that each job has ended as it should.
  void Conclude(size_t read_to);
  // Called if only the coordinator failed: checks that no generation ended by a fault.
  void ConcludeUndisturbed();

 private:
  void Changed(const store::Change& change);
  void AddDecision(const store::Change& change);
  void JobChanged(const JobId& id, const std::string& bytes);
  void PublishedIn(const JobId& id, const Job& job, JobAccount& account);
  void GenerationChanged(Generation generation);
  void RowDeleted(const std::string& key);
  void RunChanged(const std::string& id, const std::string& bytes);
  // What projects share: a generation has started, or is stopped so that another job can start.
  void CheckQuota(const std::string& name, const JobAccount& account);
  void CheckPreemption(const JobId& id, const Generation& generation, JobAccount& account);
  void CheckTimeLimit(const JobId& id, const Job& job, JobAccount& account);
  // A generation has started: on no node that is reserved for others while it may run, or where its reservation says.
  void CheckReservations(const std::string& name, const Generation& generation, const JobAccount& account);
  // All ranks are in one domain of the required topology.
  void CheckTopology(const std::string& name, const Generation& generation, const Resources& asked);
  // What jobs that come after others are promised: one starts when those have completed, and fails only with them.
  void CheckStartsAfter(const std::string& name, const JobAccount& account);
  void CheckFailsWith(const JobId& id, const Job& job, JobAccount& account);
  void EventAdded(const std::string& key, const std::optional<std::string>& value);

  std::string failure_;
  Books books_;
  uint64_t restores_ = 0;
  uint64_t names_ = 0;  // given to generations
  absl::Duration min_run_;
  bool by_priority_ = false;
  std::set<JobId> lost_;
  std::set<std::pair<JobId, uint64_t>> used_;  // numbers of generations, of all histories
  std::map<JobId, uint64_t> dropped_;
  std::set<JobId> deletable_;
  std::set<WrittenCheckpoint> written_;
  std::map<std::pair<JobId, uint64_t>, uint64_t> resumed_;  // steps, by job and name
  void CheckHangReport(const JobId& id, const Failure& failure, const Generation& generation);
  void CheckCulprit(const std::string& name, const Generation& generation, const JobAccount& account);
  void TimeBreakdownChanged(const JobId& id, const TimeBreakdown& time_breakdown, JobAccount& account);

  const Clock* const clock_;
  std::map<Ran, std::string> started_;
  std::set<Ran> running_;  // ranks with a running process
  struct FrozenRank {
    bool seen = false;    // its page shows less progress than the other ranks'
    bool frozen = false;  // now
    SteadyTime since;
    absl::Duration longest;  // longest earlier freeze
  };
  std::map<Ran, FrozenRank> frozen_;
  // Since when the ranks of a replica offer a contribution, without a break: by run, replica and fragment.
  struct OfferAccount {
    std::tuple<uint64_t, uint64_t, uint64_t> of;  // the generation's name, the base, the coordinator's life
    std::map<uint32_t, SteadyTime> since;         // by rank
  };
  std::map<std::tuple<std::string, uint32_t, uint32_t>, OfferAccount> offers_;
  std::map<std::tuple<std::string, uint32_t, uint64_t, uint32_t>, uint64_t> contents_;
  uint64_t restarts_in_exchanges_ = 0;
  uint64_t coordinator_starts_ = 0, started_in_reservations_ = 0, started_before_reservations_ = 0;
  static constexpr uint64_t kFirstHash = 0xcbf29ce484222325;  // FNV-1a
  uint64_t fingerprint_ = kFirstHash;
  std::optional<uint64_t> decisions_;
};

}  // namespace muster::simulate
