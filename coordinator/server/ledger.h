// The two stores under one sequence: every state event and every history item gets its position at commit, so no item
// is ever inserted before one that a reader has seen. Numbering continues after the highest position ever assigned,
// even if those items are gone.
//
//   ledger.Stage(job, point);           // visible and acknowledged after the next Flush
//   ledger.Commit({{rows, events}});    // on disk when it returns
//   StreamPage page = ledger.Read(filter, after).value();
//
// Not thread-safe. After an error of Commit or Flush the state of the disk is unknown; the caller ends the process.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/step_time.h"
#include "coordinator/store/history.h"
#include "coordinator/store/state.h"
#include "proto/job.pb.h"
#include "proto/jobs.pb.h"

namespace muster::server {

// The changes of one event of the core.
struct Transaction {
  std::vector<store::Change> rows;
  std::vector<StateEvent> events;
  std::vector<AuditEntry> audit = {};  // who asked for it; numbered here
};

struct StreamFilter {
  JobId job;  // empty: all jobs and nodes
  bool events = true;
  bool metrics = true;
  bool logs = true;
  std::optional<uint32_t> rank;  // log chunks of this rank only
};

struct StreamItem {
  uint64_t sequence = 0;  // a reader that continues from here has seen it
  JobId job;
  std::variant<StateEvent, MetricPoint, LogChunk, Gap> body;
};

struct StreamPage {
  std::vector<StreamItem> items;
  uint64_t next = 0;  // continue reading from here
  bool more = false;
};

// A search, from the newest item back, for where the newest `count` items start; each line of a log counts as one. It
// may reach over the whole history, so it is made in portions (Ledger::FindTail).
struct TailSearch {
  StreamFilter filter;
  uint64_t count = 0;   // to be found still
  uint64_t before = 0;  // everything from here on is found
  bool found = false;
  // When found: the items start after `after`, without the first lines of the first log chunk.
  uint64_t after = 0;
  uint64_t skip_lines = 0;
};

using StoredInput = std::vector<std::pair<RankId, store::Acknowledged>>;

class Ledger {
 public:
  static constexpr size_t kPageItems = 256;
  static constexpr size_t kNodeEventsKept = 100'000;  // events of jobs are kept with them
  static constexpr size_t kPageBytes = 64 * 1024;     // plus at most one log chunk
  static constexpr uint64_t kAuditEntriesKept = 100'000;

  // Opens or creates both files in `directory`. Errors as OpenSqliteState.
  // `audit_kept`: so many entries of the audit log; beyond, the oldest are deleted.
  static absl::StatusOr<std::unique_ptr<Ledger>> Open(const std::string& directory, const store::HistoryLimits& limits,
                                                      uint64_t audit_kept = kAuditEntriesKept);
  // Uses stores that are open. DataLoss: a row of the stream does not parse.
  static absl::StatusOr<std::unique_ptr<Ledger>> Over(std::unique_ptr<store::StateStore> state,
                                                      std::unique_ptr<store::HistoryStore> history,
                                                      uint64_t audit_kept = kAuditEntriesKept);

  // Random, made with the files; empty over stores that others made.
  const std::string& store_id() const { return store_id_; }

  // The store is a backup's, and this is its first coordinator. Known until the next Commit.
  bool restored_copy() const { return restored_copy_; }

  // Higher than any that has written to the store before this Ledger. Messages of a lower one are stale.
  uint64_t term() const { return term_; }
  // Durable with the next Commit. REQUIRES: higher than term().
  void RaiseTerm(uint64_t term) { term_ = term; }

  // All rows except events and the audit log.
  absl::StatusOr<std::vector<store::KeyValue>> Rows();

  // One durable transaction. First flushes staged history of jobs that have an event in it, so that a job's last
  // metrics come before its end.
  absl::Status Commit(const std::vector<Transaction>& transactions);

  void Stage(const JobId& job, std::variant<MetricPoint, LogChunk> item);
  // How far a rank's input will be stored once everything that is staged is flushed.
  void Stage(const RankId& rank, const store::Acknowledged& input);
  size_t staged() const { return staged_items_.size() + staged_input_.size(); }
  // History items that were dropped because the disk was full. A Gap stands for them in the stream.
  uint64_t dropped() const { return dropped_; }
  bool HasStaged(const JobId& job) const { return staged_jobs_.contains(job); }
  // On a full disk, where what is free is for the state, drops what is staged, and counts it as stored: ranks need not
  // wait for room.
  absl::Status Flush();

  // What Commit and Flush have stored since the last call: input to acknowledge, and jobs with new items (the empty id:
  // events of nodes).
  StoredInput TakeStoredInput() { return std::exchange(stored_input_, {}); }
  std::set<JobId> TakeChangedJobs() { return std::exchange(changed_jobs_, {}); }
  absl::StatusOr<store::Acknowledged> GetAcknowledged(const RankId& rank) { return history_->GetAcknowledged(rank); }

  uint64_t last_sequence() const { return last_sequence_; }
  // Committed items after `after`, ascending. Items that are no longer kept appear as at most one Gap per page and
  // kind, at the first place where something is missing, with the number of all items missing in the page.
  absl::StatusOr<StreamPage> Read(const StreamFilter& filter, uint64_t after);
  // The search among what is committed by now.
  TailSearch StartTail(const StreamFilter& filter, uint64_t count) const;
  // One portion of it, which costs about as much as Read. REQUIRES: not found yet.
  absl::Status FindTail(TailSearch& search);
  // With mean_step_seconds, of the steps since this Ledger was opened.
  MetricPoint LastMetrics(const JobId& job) const;

  // At most `count` entries of the audit log with numbers below `before` (0: the newest), newest first.
  absl::StatusOr<std::vector<AuditEntry>> ReadAudit(uint64_t before, size_t count);

  // All jobs that have events or history.
  std::set<JobId> Jobs() const;
  // Removes the job's events and history, except events at or after `before`: the event of its deletion stays.
  absl::Status Forget(const JobId& job, uint64_t before);
  absl::StatusOr<bool> Prune(const std::function<std::vector<JobId>()>& ended) { return history_->Prune(ended); }
  absl::StatusOr<uint64_t> Backup(const std::string& path) { return state_->Backup(path); }

 private:
  Ledger(std::unique_ptr<store::StateStore> state, std::unique_ptr<store::HistoryStore> history, uint64_t audit_kept)
      : audit_kept_(audit_kept), state_(std::move(state)), history_(std::move(history)), term_(state_->term() + 1) {}
  absl::Status LoadAudit();
  absl::Status PruneAudit();
  absl::Status LoadEvents();
  // Deletes the oldest events of nodes beyond those that are kept, a thousand at a time.
  absl::Status PruneNodeEvents();
  absl::Status LoadStoreId();
  absl::Status LoadCopyMark();
  const std::vector<uint64_t>& EventsOf(const JobId& job) const;
  absl::Status ReadEvents(const StreamFilter& filter, uint64_t after, StreamPage& page);
  absl::Status ReadHistory(const StreamFilter& filter, uint64_t after, uint64_t& horizon, StreamPage& page);

  const uint64_t audit_kept_;
  std::unique_ptr<store::StateStore> state_;
  std::unique_ptr<store::HistoryStore> history_;
  uint64_t term_;
  std::string store_id_;
  bool restored_copy_ = false;
  uint64_t last_sequence_ = 0;
  std::vector<uint64_t> events_;                          // sequences of all events, ascending
  std::map<JobId, std::vector<uint64_t>> events_of_job_;  // the same for each job
  std::deque<uint64_t> events_of_nodes_;                  // the same for those of no job

  uint64_t audit_first_ = 1, audit_last_ = 0;  // numbers of the entries that are kept

  struct Dropped {
    uint64_t items = 0, through = 0;
  };
  // Metrics of a job, or the output of one of its ranks.
  using Series = std::pair<JobId, std::optional<std::pair<uint64_t, uint32_t>>>;
  static Series SeriesOf(const store::HistoryItem& item);
  std::map<Series, Dropped> gaps_;  // before the next item of each series
  uint64_t dropped_ = 0;

  std::vector<store::HistoryItem> staged_items_;  // without sequences yet
  std::map<RankId, store::Acknowledged> staged_input_;
  std::set<JobId> staged_jobs_;
  std::map<JobId, StepTime> step_times_;
  StoredInput stored_input_;
  std::set<JobId> changed_jobs_;
};

}  // namespace muster::server
