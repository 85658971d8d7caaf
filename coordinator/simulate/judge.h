// The invariants. The judge sees every row that reaches the virtual disk, everything that the coordinator says to the
// outside and everything that happens on the nodes, and keeps its own account of it; the first thing that should not be
// ends the run.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "coordinator/store/state.h"
#include "proto/job.pb.h"
#include "proto/worker.pb.h"

namespace muster::simulate {

// A checkpoint that is whole on the shared disk of the nodes.
struct WrittenCheckpoint {
  JobId job;
  uint64_t generation = 0;
  uint64_t step = 0;
  std::string directory;
  friend auto operator<=>(const WrittenCheckpoint&, const WrittenCheckpoint&) = default;
};

// What the judge knows of a job from the committed rows.
struct JobAccount {
  std::string request;
  uint64_t sequence = 0;
  JobState state = JOB_STATE_UNSPECIFIED;
  uint64_t restarts = 0;
  std::map<uint64_t, Generation> generations;
  std::set<uint64_t> ended;                           // of the generations, also those whose rows are gone
  std::map<uint64_t, PublishedCheckpoint> published;  // ever, by step
  uint64_t progress_step = 0;
  uint64_t steps = 0;  // of its spec
  uint32_t max_restarts = 0;
  Resources resources;
  bool deleted = false;
  TimeBreakdown time_breakdown;
  SteadyTime submitted_at, ended_at;  // when that was on disk
  uint64_t coordinator_starts = 0;    // before it was submitted
  uint64_t hung_generation = 0;       // the last one of which that was said
};

class Judge {
 public:
  explicit Judge(const Clock* clock) : clock_(clock) {}

  bool failed() const { return !failure_.empty(); }
  // "invariant: what happened"; empty: none was broken.
  const std::string& failure() const { return failure_; }
  void Fail(const std::string& invariant, const std::string& what);

  // ---- The disk. ----
  // In the order of the commit; each group is one event's.
  void Committed(const std::vector<store::ChangeGroup>& groups);
  // A metric point was stored.
  void Stored(const JobId& job, const MetricPoint& point);

  // ---- The coordinator's word. ----
  // To a node, on one stream; `last_revision` is that stream's.
  void Told(const Desired& desired, uint64_t& last_revision);
  // To a user: the request was taken as this job.
  void Accepted(const std::string& request, const JobId& job);
  void MayBeDeleted(const JobId& job) { deletable_.insert(job); }
  void CancelAccepted(const JobId& job) { cancelled_.insert(job); }
  // To a worker: these records need not be sent again.
  void Acknowledged(const RankId& rank, const std::vector<Record>& records);
  // To a reader of the whole stream, which had seen `position` events before.
  void Read(const StateEvent& event, size_t& position);

  // ---- The nodes. ----
  void Written(const WrittenCheckpoint& checkpoint) { written_.insert(checkpoint); }
  void Started(const RankId& rank, const std::string& node);
  void Ended(const RankId& rank) { running_.erase(rank); }
  // `seen`: by its page it is behind the others.
  void Frozen(const RankId& rank, bool seen);
  void Thawed(const RankId& rank);
  void CoordinatorStarted() { ++coordinator_starts_; }
  // A worker ends a rank since it is not wanted.
  void Unwanted(const RankId& rank);

  const std::map<JobId, JobAccount>& jobs() const { return jobs_; }
  size_t events() const { return stream_.size(); }
  uint64_t fingerprint() const { return fingerprint_; }
  // Everything has had time to come to rest: each job has ended as it should.
  void Conclude(size_t read_to);
  // Only the coordinator failed: no generation ended by a fault.
  void ConcludeUndisturbed();

 private:
  void Changed(const store::Change& change);
  void JobChanged(const JobId& id, const std::string& bytes);
  void PublishedIn(const JobId& id, const Job& job, JobAccount& account);
  void GenerationChanged(Generation generation);
  void RowDeleted(const std::string& key);
  void EventAdded(const std::string& key, const std::optional<std::string>& value);

  std::string failure_;
  std::map<JobId, JobAccount> jobs_;
  std::map<std::string, JobId> requests_;
  std::map<std::pair<std::string, uint32_t>, std::pair<JobId, uint64_t>> slots_;  // to the generation that holds them
  std::set<JobId> deletable_;
  std::set<JobId> cancelled_;
  std::set<WrittenCheckpoint> written_;
  void HangTold(const JobId& id, const Failure& failure, const Generation& generation);
  void TimeBreakdownChanged(const JobId& id, const TimeBreakdown& time_breakdown, JobAccount& account);

  const Clock* const clock_;
  std::map<RankId, std::string> started_;
  std::set<RankId> running_;  // its process is there
  struct StreamEvent {
    uint64_t sequence;
    JobId job;
    std::string bytes;
  };
  std::vector<StreamEvent> stream_;
  struct FrozenRank {
    bool seen = false;    // its page stands behind those of the others
    bool frozen = false;  // now
    SteadyTime since;
    absl::Duration longest;  // before
  };
  std::map<RankId, FrozenRank> frozen_;
  uint64_t coordinator_starts_ = 0;
  uint64_t fingerprint_ = 0xcbf29ce484222325;
};

}  // namespace muster::simulate
