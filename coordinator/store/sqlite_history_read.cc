#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/store/sqlite_history.h"

namespace muster::store {

absl::StatusOr<HistoryItem> SqliteHistory::ItemOf(Kind kind, const Statement& row, uint64_t after) const {
  HistoryItem item;
  item.sequence = static_cast<uint64_t>(row.Integer(0));
  item.job = ids_.at(row.Integer(1));
  bool whole = true;
  if (kind == Kind::kPruned) {
    item.body = Pruned{static_cast<uint64_t>(row.Integer(2)), static_cast<uint64_t>(row.Integer(3))};
    return item;
  }
  if (kind == Kind::kMetrics) whole = item.body.emplace<MetricPoint>().ParseFromString(row.Blob(2));
  if (kind == Kind::kLogs) whole = item.body.emplace<LogChunk>().ParseFromString(row.Blob(2));
  if (!whole) {
    return absl::DataLossError(absl::StrCat(database_->path(), ": item ", item.sequence, " does not parse"));
  }
  const uint64_t through = static_cast<uint64_t>(row.Integer(4));
  if (through > after) {
    item.dropped = static_cast<uint64_t>(row.Integer(3));
    item.dropped_through = through;
  }
  return item;
}

absl::Status SqliteHistory::ReadKind(Kind kind, const HistoryFilter& filter, uint64_t from, bool back, size_t limit,
                                     size_t bytes, std::vector<HistoryItem>& items, bool& more) {
  const char* columns = kind == Kind::kPruned ? "metrics, logs" : "body, dropped, dropped_through";
  const char* table = kind == Kind::kPruned ? "pruned" : kind == Kind::kLogs ? "logs" : "metrics";
  const bool of_rank = kind == Kind::kLogs && filter.rank.has_value();
  const std::string sql = absl::StrCat(
      "SELECT sequence, job, ", columns, " FROM ", table, " WHERE sequence ", back ? "< ?1" : "> ?1",
      filter.job.empty() ? " AND ?3 = 0 AND job NOT IN (SELECT number FROM jobs WHERE forgotten)" : " AND job = ?3",
      of_rank ? " AND rank = ?4" : " AND ?4 = 0", " ORDER BY sequence ", back ? "DESC" : "ASC", " LIMIT ?2");
  int64_t job = 0;
  if (!filter.job.empty()) {
    const auto found = jobs_.find(filter.job);
    if (found == jobs_.end()) return absl::OkStatus();
    job = found->second.number;
  }
  const absl::StatusOr<Statement*> select =
      Bound(sql, std::min(from, kEndOfSequence), uint64_t{limit} + 1, job, of_rank ? *filter.rank : 0u);
  if (!select.ok()) return select.status();
  size_t count = 0, size = 0;
  while (true) {
    const absl::StatusOr<bool> row = (*select)->Step();
    if (!row.ok()) return row.status();
    if (!*row) return absl::OkStatus();
    if (count == limit || size > bytes) break;
    absl::StatusOr<HistoryItem> item = ItemOf(kind, **select, back ? kEndOfSequence : from);
    if (!item.ok()) return item.status();
    if (const auto* chunk = std::get_if<LogChunk>(&item->body)) size += chunk->text().size();
    size += 64;  // approximate size of a point
    items.push_back(*std::move(item));
    ++count;
  }
  (*select)->Reset();
  more = true;
  return absl::OkStatus();
}

absl::StatusOr<HistoryPage> SqliteHistory::Read(const HistoryFilter& filter, uint64_t after, size_t limit,
                                                size_t bytes) {
  HistoryPage page;
  uint64_t horizon = kEndOfSequence;  // beyond it some kinds have not been read
  for (const Kind kind : {Kind::kMetrics, Kind::kLogs, Kind::kPruned}) {
    if ((kind == Kind::kMetrics && !filter.metrics) || (kind == Kind::kLogs && !filter.logs)) continue;
    bool more = false;
    MUSTER_STORE_RETURN_IF_ERROR(ReadKind(kind, filter, after, false, limit, bytes, page.items, more));
    if (more) horizon = std::min(horizon, page.items.back().sequence);
    page.more |= more;
  }
  std::sort(page.items.begin(), page.items.end(), [](const auto& a, const auto& b) { return a.sequence < b.sequence; });
  while (!page.items.empty() && (page.items.back().sequence > horizon || page.items.size() > limit)) {
    page.items.pop_back();
    page.more = true;
  }
  return page;
}

absl::StatusOr<HistoryPage> SqliteHistory::ReadBack(const HistoryFilter& filter, uint64_t before, size_t limit,
                                                    size_t bytes) {
  HistoryPage page;
  uint64_t horizon = 0;
  for (const Kind kind : {Kind::kMetrics, Kind::kLogs}) {
    if ((kind == Kind::kMetrics && !filter.metrics) || (kind == Kind::kLogs && !filter.logs)) continue;
    bool more = false;
    MUSTER_STORE_RETURN_IF_ERROR(ReadKind(kind, filter, before, true, limit, bytes, page.items, more));
    if (more) horizon = std::max(horizon, page.items.back().sequence);
    page.more |= more;
  }
  std::sort(page.items.begin(), page.items.end(), [](const auto& a, const auto& b) { return a.sequence > b.sequence; });
  while (!page.items.empty() && (page.items.back().sequence < horizon || page.items.size() > limit)) {
    page.items.pop_back();
    page.more = true;
  }
  return page;
}

}  // namespace muster::store
