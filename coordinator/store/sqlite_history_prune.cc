#include "absl/strings/str_cat.h"
#include "coordinator/store/sqlite_history.h"

namespace muster::store {
namespace {

constexpr uint64_t kPruneRows = 1000;  // rows per portion

}  // namespace

absl::Status SqliteHistory::Forget(const JobId& job) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return absl::OkStatus();
  const int64_t number = found->second.number;
  MUSTER_STORE_RETURN_IF_ERROR(
      database_->InTransaction([&] { return Run("UPDATE jobs SET forgotten = 1 WHERE number = ?", number); }));
  jobs_.erase(found);
  ids_.erase(number);
  forgotten_.insert(number);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SqliteHistory::UsedBytes() {
  uint64_t numbers[3] = {};
  const char* pragmas[] = {"PRAGMA page_count", "PRAGMA freelist_count", "PRAGMA page_size"};
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<int64_t> number = database_->Integer(pragmas[i]);
    if (!number.ok()) return number.status();
    numbers[i] = static_cast<uint64_t>(*number);
  }
  return (numbers[0] - numbers[1]) * numbers[2];
}

absl::Status SqliteHistory::CountPruned(int64_t job, uint64_t sequence, uint64_t metrics, uint64_t logs) {
  return Run(
      "INSERT INTO pruned VALUES(?, ?, ?, ?) ON CONFLICT(job) DO UPDATE SET sequence = max(sequence, "
      "excluded.sequence), metrics = metrics + excluded.metrics, logs = logs + excluded.logs",
      sequence, job, metrics, logs);
}

absl::Status SqliteHistory::PruneTable(Kind kind, int64_t job, uint64_t rows, uint64_t& deleted) {
  const bool logs = kind == Kind::kLogs;
  const std::string table = logs ? "logs" : "metrics";
  const absl::StatusOr<Statement*> select =
      Bound(absl::StrCat("SELECT sequence, job, dropped", logs ? ", generation, rank, bytes" : ", 0, 0, 0", " FROM ",
                         table, job == 0 ? " WHERE ?1 = 0" : " WHERE job = ?1", " ORDER BY sequence LIMIT ?2"),
            job, rows);
  if (!select.ok()) return select.status();
  struct Row {
    uint64_t sequence;
    int64_t job;
    uint64_t dropped, generation, rank, bytes;
  };
  std::vector<Row> gone;
  while (true) {
    const absl::StatusOr<bool> row = (*select)->Step();
    if (!row.ok()) return row.status();
    if (!*row) break;
    const auto column = [&](int i) { return static_cast<uint64_t>((*select)->Integer(i)); };
    gone.push_back({column(0), (*select)->Integer(1), column(2), column(3), column(4), column(5)});
  }
  for (const Row& row : gone) {
    MUSTER_STORE_RETURN_IF_ERROR(Run(absl::StrCat("DELETE FROM ", table, " WHERE sequence = ?"), row.sequence));
    if (logs) {
      MUSTER_STORE_RETURN_IF_ERROR(
          Run("UPDATE ranks SET log_bytes = log_bytes - ? WHERE job = ? AND generation = ? AND rank = ?", row.bytes,
              row.job, row.generation, row.rank));
    }
    const auto id = ids_.find(row.job);
    if (id == ids_.end()) continue;  // forgotten: no reader sees the gap
    const uint64_t count = 1 + row.dropped;
    MUSTER_STORE_RETURN_IF_ERROR(CountPruned(row.job, row.sequence, logs ? 0 : count, logs ? count : 0));
    if (!logs) {
      JobRow& of_job = jobs_.at(id->second);
      --of_job.points;
      MUSTER_STORE_RETURN_IF_ERROR(Run("UPDATE jobs SET points = ? WHERE number = ?", of_job.points, row.job));
    }
  }
  deleted += gone.size();
  return absl::OkStatus();
}

absl::Status SqliteHistory::EmptyForgotten(uint64_t& deleted) {
  const int64_t job = *forgotten_.begin();
  MUSTER_STORE_RETURN_IF_ERROR(PruneTable(Kind::kMetrics, job, kPruneRows, deleted));
  if (deleted < kPruneRows) MUSTER_STORE_RETURN_IF_ERROR(PruneTable(Kind::kLogs, job, kPruneRows - deleted, deleted));
  if (deleted >= kPruneRows) return absl::OkStatus();
  MUSTER_STORE_RETURN_IF_ERROR(Run("DELETE FROM ranks WHERE job = ?", job));
  MUSTER_STORE_RETURN_IF_ERROR(Run("DELETE FROM pruned WHERE job = ?", job));
  MUSTER_STORE_RETURN_IF_ERROR(Run("DELETE FROM jobs WHERE number = ?", job));
  forgotten_.erase(job);
  return absl::OkStatus();
}

absl::StatusOr<bool> SqliteHistory::Prune(const std::function<std::vector<JobId>()>& ended) {
  if (has_room_ != nullptr && !has_room_()) return false;  // to delete rows takes space for the journal first
  uint64_t deleted = 0;
  if (!forgotten_.empty()) {
    if (absl::Status status = database_->InTransaction([&] { return EmptyForgotten(deleted); }); !status.ok())
      return status;
    return true;
  }
  const absl::StatusOr<uint64_t> used = UsedBytes();
  if (!used.ok()) return used.status();
  if (*used <= limits_.total_bytes) return false;
  const absl::Status status = database_->InTransaction([&]() -> absl::Status {
    for (const JobId& id : ended()) {
      const auto job = jobs_.find(id);
      if (job == jobs_.end() || job->second.empty) continue;
      MUSTER_STORE_RETURN_IF_ERROR(PruneTable(Kind::kMetrics, job->second.number, kPruneRows, deleted));
      MUSTER_STORE_RETURN_IF_ERROR(PruneTable(Kind::kLogs, job->second.number, kPruneRows, deleted));
      if (deleted > 0) return absl::OkStatus();
      job->second.empty = true;
    }
    return PruneTable(Kind::kLogs, 0, kPruneRows, deleted);
  });
  if (!status.ok()) return status;
  return deleted > 0;
}

}  // namespace muster::store
