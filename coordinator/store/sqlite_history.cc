#include "coordinator/store/sqlite_history.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "coordinator/store/thin.h"

namespace muster::store {
namespace {

constexpr Schema kHistorySchema{
    0x4d535448,
    {"CREATE TABLE meta(name TEXT PRIMARY KEY NOT NULL, value INTEGER NOT NULL);"
     "INSERT INTO meta VALUES('sequence', 0);"
     "CREATE TABLE jobs(number INTEGER PRIMARY KEY, id BLOB NOT NULL, points INTEGER NOT NULL,"
     " thinned INTEGER NOT NULL, last BLOB NOT NULL, forgotten INTEGER NOT NULL);"
     "CREATE TABLE ranks(job INTEGER NOT NULL, generation INTEGER NOT NULL, rank INTEGER NOT NULL,"
     " record_sequence INTEGER NOT NULL, log_offset INTEGER NOT NULL, log_bytes INTEGER NOT NULL,"
     " PRIMARY KEY(job, generation, rank)) WITHOUT ROWID;"
     "CREATE TABLE metrics(sequence INTEGER PRIMARY KEY, job INTEGER NOT NULL, loss REAL, validation REAL,"
     " body BLOB NOT NULL, dropped INTEGER NOT NULL, dropped_through INTEGER NOT NULL);"
     "CREATE INDEX metrics_of_job ON metrics(job);"
     "CREATE TABLE logs(sequence INTEGER PRIMARY KEY, job INTEGER NOT NULL, generation INTEGER NOT NULL,"
     " rank INTEGER NOT NULL, bytes INTEGER NOT NULL, body BLOB NOT NULL, dropped INTEGER NOT NULL,"
     " dropped_through INTEGER NOT NULL);"
     "CREATE INDEX logs_of_job ON logs(job);"
     "CREATE INDEX logs_of_rank ON logs(job, generation, rank);"
     "CREATE TABLE pruned(sequence INTEGER PRIMARY KEY, job INTEGER NOT NULL UNIQUE, metrics INTEGER NOT NULL,"
     " logs INTEGER NOT NULL);",
     // Pages of one rank's log and of all jobs: without these, each page read every row of the job's other ranks, and
     // of the table of jobs.
     "CREATE INDEX logs_of_one_rank ON logs(job, rank);"
     "CREATE INDEX forgotten_jobs ON jobs(number) WHERE forgotten;"}};

constexpr uint64_t kThinWindow = 4096;  // points of one portion
constexpr int kNewestNames = 64;        // as many as a point may have

// Of measurements in the order in which they were made, keeps the newest of each name; of too many names, those that
// were measured last. True: some were removed.
bool KeepNewest(google::protobuf::RepeatedPtrField<NamedMetric>& metrics) {
  google::protobuf::RepeatedPtrField<NamedMetric> newest;
  std::set<std::string> names;
  for (auto metric = metrics.rbegin(); metric != metrics.rend() && newest.size() < kNewestNames; ++metric) {
    if (names.insert(metric->name()).second) newest.Add()->Swap(&*metric);
  }
  std::reverse(newest.begin(), newest.end());
  const bool removed = newest.size() < metrics.size();
  metrics.Swap(&newest);
  return removed;
}

}  // namespace

absl::Status SqliteHistory::Load() {
  const absl::StatusOr<int64_t> sequence = database_->Integer("SELECT value FROM meta WHERE name = 'sequence'");
  if (!sequence.ok()) return sequence.status();
  sequence_ = static_cast<uint64_t>(*sequence);
  const absl::StatusOr<Statement*> select = Bound("SELECT number, id, points, thinned, last, forgotten FROM jobs");
  if (!select.ok()) return select.status();
  std::vector<JobId> overgrown;
  while (true) {
    const absl::StatusOr<bool> row = (*select)->Step();
    if (!row.ok()) return row.status();
    if (!*row) return ShrinkRows(overgrown);
    JobRow job{(*select)->Integer(0),
               static_cast<uint64_t>((*select)->Integer(2)),
               static_cast<uint64_t>((*select)->Integer(3)),
               {},
               false};
    next_number_ = std::max(next_number_, job.number + 1);
    if ((*select)->Integer(5) != 0) {
      forgotten_.insert(job.number);
      continue;
    }
    const JobId id((*select)->Blob(1));
    if (!job.last.ParseFromString((*select)->Blob(4))) {
      return absl::DataLossError(absl::StrCat(database_->path(), ": the metrics of job ", id.value(), " do not parse"));
    }
    const bool fewer = KeepNewest(*job.last.mutable_validation());
    if (KeepNewest(*job.last.mutable_reported()) || fewer) overgrown.push_back(id);
    ids_.emplace(job.number, id);
    jobs_.emplace(id, std::move(job));
  }
}

absl::Status SqliteHistory::ShrinkRows(const std::vector<JobId>& jobs) {
  if (jobs.empty() || (has_room_ != nullptr && !has_room_())) return absl::OkStatus();
  const absl::Status stored = database_->InTransaction([&]() -> absl::Status {
    for (const JobId& id : jobs) {
      const JobRow& job = jobs_.at(id);
      MUSTER_STORE_RETURN_IF_ERROR(
          Run("UPDATE jobs SET last = ? WHERE number = ?", job.last.SerializeAsString(), job.number));
    }
    return absl::OkStatus();
  });
  return absl::IsResourceExhausted(stored) ? absl::OkStatus() : stored;  // at a later start
}

absl::StatusOr<JobRow*> SqliteHistory::JobOf(const JobId& id) {
  const auto found = jobs_.find(id);
  if (found != jobs_.end()) {
    found->second.empty = false;
    return &found->second;
  }
  const int64_t number = next_number_++;
  MUSTER_STORE_RETURN_IF_ERROR(
      Run("INSERT INTO jobs VALUES(?, ?, 0, 0, ?, 0)", number, id.value(), std::string_view()));
  ids_.emplace(number, id);
  return &jobs_.emplace(id, JobRow{number, 0, 0, {}, false}).first->second;
}

absl::Status SqliteHistory::Append(const std::vector<HistoryItem>& items,
                                   const std::vector<std::pair<RankId, Acknowledged>>& acknowledged) {
  if (has_room_ != nullptr && !has_room_()) return absl::ResourceExhaustedError("the disk has no room for history");
  for (const HistoryItem& item : items) {
    if (item.sequence <= sequence_) {
      return absl::InvalidArgumentError(
          absl::StrCat("sequence ", item.sequence, " is not greater than ", sequence_, ", the last one"));
    }
    sequence_ = item.sequence;
  }
  const absl::Status stored = database_->InTransaction([&]() -> absl::Status {
    std::set<JobId> touched;
    for (const HistoryItem& item : items) {
      if (const auto* point = std::get_if<MetricPoint>(&item.body)) {
        MUSTER_STORE_RETURN_IF_ERROR(AppendMetrics(item, *point));
        touched.insert(item.job);
      } else if (const auto* chunk = std::get_if<LogChunk>(&item.body)) {
        MUSTER_STORE_RETURN_IF_ERROR(AppendLog(item, *chunk));
      }
    }
    for (const auto& [rank, how_far] : acknowledged) MUSTER_STORE_RETURN_IF_ERROR(Acknowledge(rank, how_far));
    for (const JobId& id : touched) {
      JobRow& job = jobs_.at(id);
      if (job.points > limits_.points_per_job) MUSTER_STORE_RETURN_IF_ERROR(ThinWindow(job));
      MUSTER_STORE_RETURN_IF_ERROR(Run("UPDATE jobs SET points = ?, thinned = ?, last = ? WHERE number = ?", job.points,
                                       job.thinned, job.last.SerializeAsString(), job.number));
    }
    return Run("UPDATE meta SET value = ? WHERE name = 'sequence'", sequence_);
  });
  if (!absl::IsResourceExhausted(stored)) return stored;
  // SQLite has rolled back; what is in memory follows the disk.
  jobs_.clear();
  ids_.clear();
  forgotten_.clear();
  if (absl::Status status = Load(); !status.ok()) return status;
  return stored;
}

absl::Status SqliteHistory::AppendMetrics(const HistoryItem& item, const MetricPoint& point) {
  const absl::StatusOr<JobRow*> found = JobOf(item.job);
  if (!found.ok()) return found.status();
  JobRow& job = **found;
  // SQLite would store NaN as NULL.
  const auto column = [](bool measured, double value) -> std::optional<double> {
    if (!measured) return std::nullopt;
    return std::isnan(value) ? std::numeric_limits<double>::infinity() : value;
  };
  MUSTER_STORE_RETURN_IF_ERROR(Run("INSERT INTO metrics VALUES(?, ?, ?, ?, ?, ?, ?)", item.sequence, job.number,
                                   column(point.has_loss(), point.loss()),
                                   column(point.has_validation_loss(), point.validation_loss()),
                                   point.SerializeAsString(), item.dropped, item.dropped_through));
  ++job.points;
  // Merging would mix the fields of two messages.
  job.last.clear_time();
  if (point.has_collective()) job.last.clear_collective();
  job.last.MergeFrom(point);
  KeepNewest(*job.last.mutable_validation());
  KeepNewest(*job.last.mutable_reported());
  return absl::OkStatus();
}

absl::Status SqliteHistory::AppendLog(const HistoryItem& item, const LogChunk& chunk) {
  const absl::StatusOr<JobRow*> job = JobOf(item.job);
  if (!job.ok()) return job.status();
  const int64_t number = (*job)->number;
  MUSTER_STORE_RETURN_IF_ERROR(Run("INSERT INTO logs VALUES(?, ?, ?, ?, ?, ?, ?, ?)", item.sequence, number,
                                   chunk.generation(), chunk.rank(), chunk.text().size(), chunk.SerializeAsString(),
                                   item.dropped, item.dropped_through));
  MUSTER_STORE_RETURN_IF_ERROR(
      Run("INSERT INTO ranks VALUES(?, ?, ?, 0, 0, ?) ON CONFLICT DO UPDATE SET log_bytes = log_bytes + "
          "excluded.log_bytes",
          number, chunk.generation(), chunk.rank(), chunk.text().size()));
  return TrimLog(number, chunk);
}

absl::Status SqliteHistory::TrimLog(int64_t job, const LogChunk& chunk) {
  const absl::StatusOr<Statement*> size =
      Bound("SELECT log_bytes FROM ranks WHERE job = ? AND generation = ? AND rank = ?", job, chunk.generation(),
            chunk.rank());
  if (!size.ok()) return size.status();
  const absl::StatusOr<bool> found = (*size)->Step();
  if (!found.ok()) return found.status();
  uint64_t bytes = *found ? static_cast<uint64_t>((*size)->Integer(0)) : 0;
  (*size)->Reset();
  if (bytes <= limits_.log_bytes_per_rank) return absl::OkStatus();

  std::vector<uint64_t> gone;
  const absl::StatusOr<Statement*> oldest =
      Bound("SELECT sequence, bytes, dropped FROM logs WHERE job = ? AND generation = ? AND rank = ? ORDER BY sequence",
            job, chunk.generation(), chunk.rank());
  if (!oldest.ok()) return oldest.status();
  uint64_t dropped = 0;
  uint64_t kept = 0;  // the oldest chunk that stays
  while (true) {
    const absl::StatusOr<bool> row = (*oldest)->Step();
    if (!row.ok()) return row.status();
    if (!*row) break;
    kept = static_cast<uint64_t>((*oldest)->Integer(0));
    const uint64_t row_bytes = static_cast<uint64_t>((*oldest)->Integer(1));
    if (bytes <= limits_.log_bytes_per_rank || row_bytes == bytes) break;
    bytes -= row_bytes;
    dropped += 1 + static_cast<uint64_t>((*oldest)->Integer(2));
    gone.push_back(kept);
  }
  (*oldest)->Reset();
  for (const uint64_t sequence : gone) {
    MUSTER_STORE_RETURN_IF_ERROR(Run("DELETE FROM logs WHERE sequence = ?", sequence));
  }
  if (gone.empty()) return absl::OkStatus();
  MUSTER_STORE_RETURN_IF_ERROR(
      Run("UPDATE logs SET dropped = dropped + ?, dropped_through = ? WHERE sequence = ?", dropped, gone.back(), kept));
  return Run("UPDATE ranks SET log_bytes = ? WHERE job = ? AND generation = ? AND rank = ?", bytes, job,
             chunk.generation(), chunk.rank());
}

absl::Status SqliteHistory::ThinWindow(JobRow& job) {
  const uint64_t window_size = std::clamp<uint64_t>(limits_.points_per_job / 4, 8, kThinWindow);
  const absl::StatusOr<Statement*> select = Bound(
      "SELECT sequence, loss, validation, dropped FROM metrics WHERE job = ? AND sequence > ? ORDER BY sequence "
      "LIMIT ?",
      job.number, job.thinned, window_size);
  if (!select.ok()) return select.status();
  std::vector<ThinPoint> window;
  std::vector<uint64_t> dropped_before;
  while (true) {
    const absl::StatusOr<bool> row = (*select)->Step();
    if (!row.ok()) return row.status();
    if (!*row) break;
    ThinPoint point{static_cast<uint64_t>((*select)->Integer(0)), std::nullopt, std::nullopt};
    if (!(*select)->IsNull(1)) point.loss = (*select)->Real(1);
    if (!(*select)->IsNull(2)) point.validation_loss = (*select)->Real(2);
    window.push_back(point);
    dropped_before.push_back(static_cast<uint64_t>((*select)->Integer(3)));
  }
  // After the newest point the sweep restarts, over the points that the previous sweep kept.
  job.thinned = window.size() < window_size ? 0 : window.back().sequence;
  const std::vector<bool> keep = Thin(window);
  uint64_t dropped = 0, through = 0;
  for (size_t i = 0; i < window.size(); ++i) {
    if (!keep[i]) {
      dropped += 1 + dropped_before[i];
      through = window[i].sequence;
      --job.points;
      MUSTER_STORE_RETURN_IF_ERROR(Run("DELETE FROM metrics WHERE sequence = ?", window[i].sequence));
    } else if (dropped > 0) {
      MUSTER_STORE_RETURN_IF_ERROR(
          Run("UPDATE metrics SET dropped = dropped + ?, dropped_through = ? WHERE sequence = ?", dropped, through,
              window[i].sequence));
      dropped = 0;
    }
  }
  return absl::OkStatus();
}

absl::Status SqliteHistory::Acknowledge(const RankId& rank, const Acknowledged& acknowledged) {
  const absl::StatusOr<JobRow*> job = JobOf(rank.job);
  if (!job.ok()) return job.status();
  return Run(
      "INSERT INTO ranks VALUES(?, ?, ?, ?, ?, 0) ON CONFLICT DO UPDATE SET"
      " record_sequence = max(record_sequence, excluded.record_sequence),"
      " log_offset = max(log_offset, excluded.log_offset)",
      (*job)->number, rank.generation, rank.rank, acknowledged.record_sequence, acknowledged.log_offset);
}

absl::StatusOr<Acknowledged> SqliteHistory::GetAcknowledged(const RankId& rank) {
  const auto job = jobs_.find(rank.job);
  if (job == jobs_.end()) return Acknowledged{};
  const absl::StatusOr<Statement*> select =
      Bound("SELECT record_sequence, log_offset FROM ranks WHERE job = ? AND generation = ? AND rank = ?",
            job->second.number, rank.generation, rank.rank);
  if (!select.ok()) return select.status();
  const absl::StatusOr<bool> row = (*select)->Step();
  if (!row.ok()) return row.status();
  if (!*row) return Acknowledged{};
  const Acknowledged result{static_cast<uint64_t>((*select)->Integer(0)), static_cast<uint64_t>((*select)->Integer(1))};
  (*select)->Reset();
  return result;
}

MetricPoint SqliteHistory::LastMetrics(const JobId& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? MetricPoint() : found->second.last;
}

std::vector<JobId> SqliteHistory::Jobs() const {
  std::vector<JobId> result;
  for (const auto& [id, row] : jobs_) result.push_back(id);
  return result;
}

absl::StatusOr<std::unique_ptr<HistoryStore>> OpenSqliteHistory(const std::string& directory,
                                                                const HistoryLimits& limits,
                                                                std::function<bool()> has_room) {
  absl::StatusOr<std::unique_ptr<Database>> database =
      Database::Open(absl::StrCat(directory, "/history.db"), kHistorySchema);
  if (!database.ok()) return database.status();
  auto store = std::make_unique<SqliteHistory>(*std::move(database), limits, std::move(has_room));
  if (absl::Status status = store->Load(); !status.ok()) return status;
  return store;
}

}  // namespace muster::store
