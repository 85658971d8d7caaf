// The history store: metric points and log text. Append-only, batched, bounded; losing it loses no job.
//
// Not thread-safe; the thread that owns the state store owns it too, and gives both one sequence of numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "proto/job.pb.h"

namespace muster::store {

// Marks where items were pruned to keep the total cap.
struct Pruned {
  uint64_t metrics = 0;
  uint64_t log_chunks = 0;
};

struct HistoryItem {
  uint64_t sequence = 0;  // position in the coordinator's one stream
  JobId job;
  std::variant<MetricPoint, LogChunk, Pruned> body;  // Append takes no Pruned
  // Set by reads: how many items of this series (metrics of the job, log of the rank) directly before this one are no
  // longer kept, and the sequence of the newest of them. Zero when the reader started after that.
  uint64_t dropped = 0;
  uint64_t dropped_through = 0;
};

// How far a rank's records and output are stored; the worker need not send them again.
struct Acknowledged {
  uint64_t record_sequence = 0;
  uint64_t log_offset = 0;
};

struct HistoryLimits {
  uint64_t points_per_job = 100'000;         // beyond it, windows of old points are halved, keeping extremes of loss
  uint64_t log_bytes_per_rank = 1 << 20;     // the newest text is kept
  uint64_t total_bytes = uint64_t{4} << 30;  // bytes used in the file; then the oldest ended jobs lose their history
};

struct HistoryFilter {
  JobId job;  // empty: all
  bool metrics = true;
  bool logs = true;
  std::optional<uint32_t> rank;  // log chunks of this rank only
};

struct HistoryPage {
  std::vector<HistoryItem> items;
  bool more = false;  // there are further items in the direction of the read
};

class HistoryStore {
 public:
  virtual ~HistoryStore() = default;

  // One durable transaction: the items, whose sequences ascend and are greater than LastSequence(), and how far each
  // rank's input is now stored. An item's `dropped` is stored, too: how many before it never got here.
  // ResourceExhausted: the disk is full; nothing was stored. After another error the state of the disk is unknown; the
  // caller ends the process.
  virtual absl::Status Append(const std::vector<HistoryItem>& items,
                              const std::vector<std::pair<RankId, Acknowledged>>& acknowledged) = 0;
  // Zeros for an unknown rank.
  virtual absl::StatusOr<Acknowledged> GetAcknowledged(const RankId& rank) = 0;

  // Items with sequence > `after`, ascending: at most `limit`, and no more once `bytes` of them are exceeded.
  virtual absl::StatusOr<HistoryPage> Read(const HistoryFilter& filter, uint64_t after, size_t limit, size_t bytes) = 0;
  // Items with sequence < `before`, descending, without Pruned; bounded as Read is.
  virtual absl::StatusOr<HistoryPage> ReadBack(const HistoryFilter& filter, uint64_t before, size_t limit,
                                               size_t bytes) = 0;
  // Newest value of each series; an empty point when there is none. In memory.
  virtual MetricPoint LastMetrics(const JobId& job) const = 0;

  // The highest sequence ever appended, even if that item is gone.
  virtual uint64_t LastSequence() const = 0;
  // All jobs that have items here.
  virtual std::vector<JobId> Jobs() const = 0;
  // Hides everything of the job at once; Prune removes its rows later.
  virtual absl::Status Forget(const JobId& job) = 0;
  // Runs one bounded portion (milliseconds) of the work that keeps the total cap and removes forgotten jobs; true:
  // there is more to do. `ended` returns the jobs whose history may be removed, oldest first, and is called only if
  // needed; if they do not suffice, the oldest log chunks of any job are removed. Cheap when there is nothing to do.
  virtual absl::StatusOr<bool> Prune(const std::function<std::vector<JobId>()>& ended) = 0;
};

// `directory`/history.db. Errors as OpenSqliteState. `has_room`: whether the disk has room for more than what it is
// reserved for; without it nothing is written: Append is ResourceExhausted, and Prune does nothing. Null: always.
absl::StatusOr<std::unique_ptr<HistoryStore>> OpenSqliteHistory(const std::string& directory,
                                                                const HistoryLimits& limits,
                                                                std::function<bool()> has_room = nullptr);

}  // namespace muster::store
