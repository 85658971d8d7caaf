// history.db. Private to this folder; see history.h for the contract. One class in three files: sqlite_history.cc
// writes, sqlite_history_read.cc reads, sqlite_history_prune.cc removes.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/store/history.h"
#include "coordinator/store/sqlite.h"

namespace muster::store {

#define MUSTER_STORE_RETURN_IF_ERROR(expression)             \
  do {                                                       \
    if (absl::Status s_ = (expression); !s_.ok()) return s_; \
  } while (false)

// The largest number that SQLite stores.
inline constexpr uint64_t kEndOfSequence = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

struct JobRow {
  int64_t number = 0;
  uint64_t points = 0;
  uint64_t thinned = 0;  // thinning has processed windows up to this sequence; 0: restart
  MetricPoint last;
  bool empty = false;  // pruning found nothing to remove
};

class SqliteHistory final : public HistoryStore {
 public:
  SqliteHistory(std::unique_ptr<Database> database, const HistoryLimits& limits, std::function<bool()> has_room)
      : limits_(limits), has_room_(std::move(has_room)), database_(std::move(database)) {}

  absl::Status Load();

  absl::Status Append(const std::vector<HistoryItem>& items,
                      const std::vector<std::pair<RankId, Acknowledged>>& acknowledged) override;
  absl::StatusOr<Acknowledged> GetAcknowledged(const RankId& rank) override;
  absl::StatusOr<HistoryPage> Read(const HistoryFilter& filter, uint64_t after, size_t limit, size_t bytes) override;
  absl::StatusOr<HistoryPage> ReadBack(const HistoryFilter& filter, uint64_t before, size_t limit,
                                       size_t bytes) override;
  MetricPoint LastMetrics(const JobId& job) const override;
  uint64_t LastSequence() const override { return sequence_; }
  std::vector<JobId> Jobs() const override;
  absl::Status Forget(const JobId& job) override;
  absl::StatusOr<bool> Prune(const std::function<std::vector<JobId>()>& ended) override;

 private:
  enum class Kind { kMetrics, kLogs, kPruned };

  // The statement for `sql`, bound; prepared at its first use.
  template <typename... Arguments>
  absl::StatusOr<Statement*> Bound(const std::string& sql, const Arguments&... arguments) {
    auto found = statements_.find(sql);
    if (found == statements_.end()) {
      absl::StatusOr<Statement> statement = database_->Prepare(sql.c_str());
      if (!statement.ok()) return statement.status();
      found = statements_.emplace(sql, *std::move(statement)).first;
    }
    found->second.Bind(arguments...);
    return &found->second;
  }
  template <typename... Arguments>
  absl::Status Run(const std::string& sql, const Arguments&... arguments) {
    const absl::StatusOr<Statement*> statement = Bound(sql, arguments...);
    return statement.ok() ? (*statement)->Run() : statement.status();
  }
  // Earlier builds kept every value of a named metric among the newest ones.
  absl::Status ShrinkRows(const std::vector<JobId>& jobs);
  absl::StatusOr<JobRow*> JobOf(const JobId& id);
  absl::Status AppendMetrics(const HistoryItem& item, const MetricPoint& point);
  absl::Status AppendLog(const HistoryItem& item, const LogChunk& chunk);
  absl::Status TrimLog(int64_t job, const LogChunk& chunk);
  absl::Status ThinWindow(JobRow& job);
  absl::Status Acknowledge(const RankId& rank, const Acknowledged& acknowledged);

  absl::Status ReadKind(Kind kind, const HistoryFilter& filter, uint64_t from, bool back, size_t limit, size_t bytes,
                        std::vector<HistoryItem>& items, bool& more);
  absl::StatusOr<HistoryItem> ItemOf(Kind kind, const Statement& row, uint64_t after) const;

  absl::StatusOr<uint64_t> UsedBytes();
  // Deletes up to `rows` oldest rows of a table, of one job or (0) of all jobs. Adds to `deleted`.
  absl::Status PruneTable(Kind kind, int64_t job, uint64_t rows, uint64_t& deleted);
  absl::Status CountPruned(int64_t job, uint64_t sequence, uint64_t metrics, uint64_t logs);
  absl::Status EmptyForgotten(uint64_t& deleted);

  const HistoryLimits limits_;
  const std::function<bool()> has_room_;
  std::unique_ptr<Database> database_;  // before the statements, which it must outlive
  std::map<std::string, Statement> statements_;
  std::map<JobId, JobRow> jobs_;
  std::map<int64_t, JobId> ids_;  // ids of jobs_
  std::set<int64_t> forgotten_;   // jobs that still have rows
  uint64_t sequence_ = 0;
  int64_t next_number_ = 1;
};

}  // namespace muster::store
