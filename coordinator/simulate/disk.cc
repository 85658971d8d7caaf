#include "coordinator/simulate/disk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::simulate {

class VirtualState final : public store::StateStore {
 public:
  VirtualState(Disk* disk, std::shared_ptr<Life> life) : disk_(disk), life_(std::move(life)) {}

  absl::StatusOr<std::vector<store::KeyValue>> Range(std::string_view begin, std::string_view end,
                                                     size_t limit) override {
    std::vector<store::KeyValue> rows;
    for (auto row = disk_->content_.rows.lower_bound(begin); row != disk_->content_.rows.end(); ++row) {
      if ((!end.empty() && row->first >= end) || (limit > 0 && rows.size() == limit)) break;
      rows.push_back({row->first, row->second});
    }
    return rows;
  }

  absl::StatusOr<std::optional<std::string>> Get(std::string_view key) override {
    if (const auto row = unwritten_.find(key); row != unwritten_.end()) return row->second;
    const auto row = disk_->content_.rows.find(key);
    return row == disk_->content_.rows.end() ? std::nullopt : std::optional(row->second);
  }

  uint64_t term() const override { return disk_->content_.term; }

  absl::Status Commit(uint64_t term, const std::vector<store::ChangeGroup>& groups) override {
    if (term < disk_->content_.term) return absl::FailedPreconditionError("a leader with a higher term has written");
    for (const store::ChangeGroup& group : groups) {
      if (group.size() > store::kMaxCommitKeys) return absl::InvalidArgumentError("a group of too many keys");
    }
    bool written = life_->BeginWrite();
    if (written && !disk_->Take(groups)) {
      life_->Abort();  // as coordinator/server/fatal.h
      written = false;
    }
    if (!written) {
      for (const store::ChangeGroup& group : groups) {
        for (const store::Change& change : group) unwritten_[change.key] = change.value;
      }
      return absl::OkStatus();
    }
    disk_->content_.term = term;
    disk_->judge_->Committed(groups);
    for (const store::ChangeGroup& group : groups) {
      for (const store::Change& change : group) {
        if (change.value.has_value()) {
          disk_->content_.rows[change.key] = *change.value;
        } else {
          disk_->content_.rows.erase(change.key);
        }
      }
    }
    life_->EndWrite();
    return absl::OkStatus();
  }

  bool HasReserve() override { return !disk_->full_; }

  absl::StatusOr<uint64_t> Backup(const std::string&) override {
    return absl::UnimplementedError("the virtual disk makes no backups");
  }

 private:
  Disk* const disk_;
  const std::shared_ptr<Life> life_;
  // Writes of a killed process, which it reads back so that it stays consistent.
  std::map<std::string, std::optional<std::string>, std::less<>> unwritten_;
};

// Metric points only: the virtual trainers print nothing.
class VirtualHistory final : public store::HistoryStore {
 public:
  VirtualHistory(Disk* disk, std::shared_ptr<Life> life) : disk_(disk), life_(std::move(life)) {}

  absl::Status Append(const std::vector<store::HistoryItem>& items,
                      const std::vector<std::pair<RankId, store::Acknowledged>>& acknowledged) override {
    if (!life_->BeginWrite()) return absl::OkStatus();
    if (disk_->full_) {
      for (const store::HistoryItem& item : items) disk_->judge_->Dropped(item.job);
      return absl::ResourceExhaustedError("the virtual disk is full");
    }
    for (const store::HistoryItem& item : items) {
      if (item.sequence <= disk_->content_.last_sequence)
        disk_->judge_->Fail("stream", "a metric point after a later one");
      disk_->content_.last_sequence = item.sequence;
      const auto& point = std::get<MetricPoint>(item.body);
      disk_->judge_->Stored(item.job, point);
      disk_->judge_->ReportedDropped(item.job, item.dropped);
      disk_->content_.points[item.job][item.sequence] = point;
    }
    for (const auto& [rank, input] : acknowledged) {
      store::Acknowledged& known = disk_->content_.acknowledged[rank];
      known.record_sequence = std::max(known.record_sequence, input.record_sequence);
    }
    life_->EndWrite();
    return absl::OkStatus();
  }

  absl::StatusOr<store::Acknowledged> GetAcknowledged(const RankId& rank) override {
    const auto known = disk_->content_.acknowledged.find(rank);
    return known == disk_->content_.acknowledged.end() ? store::Acknowledged() : known->second;
  }

  absl::StatusOr<store::HistoryPage> Read(const store::HistoryFilter& filter, uint64_t after, size_t limit,
                                          size_t) override {
    store::HistoryPage page;
    if (!filter.metrics) return page;
    for (const auto& [job, points] : disk_->content_.points) {
      if (!filter.job.empty() && job != filter.job) continue;
      for (auto point = points.upper_bound(after); point != points.end(); ++point) {
        page.items.push_back({point->first, job, point->second});
      }
    }
    std::sort(page.items.begin(), page.items.end(),
              [](const store::HistoryItem& a, const store::HistoryItem& b) { return a.sequence < b.sequence; });
    page.more = page.items.size() > limit;
    if (page.more) page.items.resize(limit);
    return page;
  }

  absl::StatusOr<store::HistoryPage> ReadBack(const store::HistoryFilter&, uint64_t, size_t, size_t) override {
    return absl::UnimplementedError("the virtual history is read forwards");
  }

  MetricPoint LastMetrics(const JobId& job) const override {
    const auto points = disk_->content_.points.find(job);
    return points == disk_->content_.points.end() || points->second.empty() ? MetricPoint()
                                                                            : points->second.rbegin()->second;
  }

  uint64_t LastSequence() const override { return disk_->content_.last_sequence; }

  std::vector<JobId> Jobs() const override {
    std::vector<JobId> jobs;
    for (const auto& [job, points] : disk_->content_.points) jobs.push_back(job);
    return jobs;
  }

  absl::Status Forget(const JobId& job) override {
    if (!life_->BeginWrite()) return absl::OkStatus();
    if (disk_->full_) return absl::ResourceExhaustedError("the virtual disk is full");
    disk_->content_.points.erase(job);
    life_->EndWrite();
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Prune(const std::function<std::vector<JobId>()>&) override { return false; }

 private:
  Disk* const disk_;
  const std::shared_ptr<Life> life_;
};

bool Disk::Take(const std::vector<store::ChangeGroup>& groups) {
  if (!full_) return true;
  // Whatever their size: that depends on the wall clock, whose times they contain.
  constexpr uint64_t kBytesOfAChange = 1024;
  uint64_t bytes = 0;
  for (const store::ChangeGroup& group : groups) bytes += group.size() * kBytesOfAChange;
  const bool fits = bytes < reserve_bytes_;
  reserve_bytes_ = fits ? reserve_bytes_ - bytes : 0;
  return fits;
}

std::unique_ptr<store::StateStore> Disk::OpenState(std::shared_ptr<Life> life) {
  return std::make_unique<VirtualState>(this, std::move(life));
}

std::unique_ptr<store::HistoryStore> Disk::OpenHistory(std::shared_ptr<Life> life) {
  return std::make_unique<VirtualHistory>(this, std::move(life));
}

}  // namespace muster::simulate
