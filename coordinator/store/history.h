// Rows that tell: metric points and log text. Append-only, batched, bounded; losing it loses no job.
//
// Not thread-safe; the thread that owns the state store owns it too, and gives both one sequence of numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "proto/job.pb.h"

namespace muster::store {

struct HistoryItem {
  uint64_t sequence = 0;  // position in the coordinator's one stream
  JobId job;
  std::variant<MetricPoint, LogChunk> body;
};

// How far a rank's records and output are stored: what the worker need not send again.
struct Acknowledged {
  uint64_t record_sequence = 0;
  uint64_t log_offset = 0;
};

struct HistoryLimits {
  uint64_t points_per_job = 100'000;         // then every second point is dropped, keeping extremes of loss
  uint64_t log_bytes_per_rank = 1 << 20;     // the newest
  uint64_t total_bytes = uint64_t{4} << 30;  // of the file; then the oldest ended jobs' history goes
};

// What a page of items passes over because it is no longer kept.
struct HistoryPage {
  std::vector<HistoryItem> items;  // ascending sequence
  bool more = false;
  uint64_t dropped_metrics = 0;  // dropped between the asked-for start and the first item, since kept counts began
  uint64_t dropped_log_chunks = 0;
};

class HistoryStore {
 public:
  virtual ~HistoryStore() = default;

  // One transaction: the items, and how far each rank's input is now stored.
  virtual absl::Status Append(const std::vector<HistoryItem>& items,
                              const std::vector<std::pair<RankId, Acknowledged>>& acknowledged) = 0;
  virtual absl::StatusOr<Acknowledged> GetAcknowledged(const RankId& rank) = 0;

  // Items behind `after`, of one job, or of all when `job` is empty; at most `limit`.
  virtual absl::StatusOr<HistoryPage> Read(const JobId& job, uint64_t after, size_t limit, bool metrics, bool logs) = 0;
  // Sequence number before the newest `count` items of those kinds (0 if there are not that many).
  virtual absl::StatusOr<uint64_t> TailStart(const JobId& job, size_t count, bool metrics, bool logs) = 0;
  // Newest value of each series; an empty point when there is none.
  virtual absl::StatusOr<MetricPoint> LastMetrics(const JobId& job) = 0;

  virtual absl::StatusOr<uint64_t> LastSequence() = 0;
  virtual absl::Status Forget(const JobId& job) = 0;
  // Keeps the limits; `ended` are jobs whose history may go, oldest first. Cheap when there is nothing to do.
  virtual absl::Status Prune(const std::vector<JobId>& ended) = 0;
};

// `directory`/history.db. Errors as OpenSqliteState.
absl::StatusOr<std::unique_ptr<HistoryStore>> OpenSqliteHistory(const std::string& directory,
                                                                const HistoryLimits& limits);

}  // namespace muster::store
