#include "coordinator/server/watches.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/server/cursor.h"

namespace muster::server {
namespace {

constexpr size_t kServedAtOnce = 16;  // then the loop handles requests

bool HasEnded(const core::Core& core, const JobId& job) {
  const Job* found = core.Stored(job);
  return found == nullptr || found->state() == JOB_STATE_COMPLETED || found->state() == JOB_STATE_FAILED ||
         found->state() == JOB_STATE_CANCELLED;
}

// Removes the first `lines` lines.
void SkipLines(uint64_t lines, LogChunk& chunk) {
  size_t begin = 0;
  for (; lines > 0 && begin < chunk.text().size(); --lines) {
    const size_t end = chunk.text().find('\n', begin);
    begin = end == std::string::npos ? chunk.text().size() : end + 1;
  }
  chunk.set_offset(chunk.offset() + begin);
  chunk.mutable_text()->erase(0, begin);
}

// `snapshot_at`: the last position that the stream's snapshot has seen.
WatchItem ToWatchItem(StreamItem item, uint64_t snapshot_at) {
  WatchItem result;
  result.set_cursor(CursorOf(item.sequence));
  result.set_job(item.job.value());
  if (auto* event = std::get_if<StateEvent>(&item.body)) *result.mutable_event() = std::move(*event);
  if (auto* point = std::get_if<MetricPoint>(&item.body)) *result.mutable_metrics() = std::move(*point);
  if (auto* chunk = std::get_if<LogChunk>(&item.body)) *result.mutable_log() = std::move(*chunk);
  if (auto* gap = std::get_if<Gap>(&item.body)) *result.mutable_gap() = std::move(*gap);
  result.set_in_snapshot(result.has_event() && item.sequence <= snapshot_at);
  return result;
}

}  // namespace

struct Watch {  // NOLINT(clang-analyzer-optin.performance.Padding): in the order of what belongs together
  StreamFilter filter;
  bool follow = false;
  uint64_t after = 0;                        // delivered up to here
  uint64_t end = 0;                          // last position for a reader that does not follow
  std::optional<TailSearch> tail;            // where it begins
  std::function<bool(const Job&)> may_read;  // null: every job
  bool snapshot = false;                     // not sent yet
  uint64_t snapshot_at = 0;                  // last position when it was made; 0: none was
  bool saw_running = false;                  // the job had not ended when the stream opened
  std::optional<SteadyTime> linger;          // the job has ended; wait until then for its last items
  bool lingers = false;                      // it is in lingering_
  Watches::Ready ready;                      // none: no page was requested
  bool closed = false;
  absl::Status revoked;              // not OK: ends with it
  std::shared_ptr<const char> open;  // counts the readers
};

namespace {

// Of a deleted job no one knows any more whose it was.
bool MayRead(const core::Core& core, const Watch& watch, const JobId& job) {
  if (watch.may_read == nullptr || job.empty()) return true;
  const Job* found = core.Stored(job);
  return found != nullptr && watch.may_read(*found);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Watch>> Watches::Open(const core::Core& core, const WatchRequest& request,
                                                     const JobId& job, WatchReader reader) {
  if (!closed_.ok()) return closed_;
  auto watch = std::make_shared<Watch>();
  watch->open = open_;
  const bool all = !request.events() && !request.metrics() && !request.logs();
  watch->filter = {job, all || request.events(), all || request.metrics(), all || request.logs(), std::nullopt};
  if (request.has_rank()) watch->filter.rank = request.rank();
  watch->follow = request.follow();
  watch->end = ledger_->last_sequence();
  if (!request.cursor().empty()) {
    if (request.has_tail()) return absl::InvalidArgumentError("give a cursor or a tail, not both");
    const absl::StatusOr<uint64_t> after = ParseCursor(request.cursor());
    if (!after.ok()) return after.status();
    if (*after > ledger_->last_sequence()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the cursor ", request.cursor(),
                       " is after everything that is stored: it is from another coordinator, or the store "
                       "was restored from a backup; watch from the beginning"));
    }
    watch->after = *after;
  } else if (request.has_tail()) {
    watch->tail = ledger_->StartTail(watch->filter, request.tail());
    watch->after = watch->tail->after;
  }
  if (!reader.token.empty()) {
    std::erase_if(by_token_, [](const auto& entry) { return entry.second.expired(); });
    by_token_.emplace(reader.token, watch);
  }
  watch->may_read = std::move(reader.may_read);
  watch->snapshot = !job.empty();
  watch->saw_running = !job.empty() && !HasEnded(core, job);
  return watch;
}

void Watches::Next(const std::shared_ptr<Watch>& watch, Ready ready) {
  if (watch->closed) return;
  watch->ready = std::move(ready);
  waiting_.push_back(watch);
}

void Watches::Close(const std::shared_ptr<Watch>& watch) {
  watch->closed = true;
  watch->ready = nullptr;
  watch->open = nullptr;
  const auto parked = parked_.find(watch->filter.job);
  if (parked == parked_.end()) return;
  parked->second.erase(watch);
  if (parked->second.empty()) parked_.erase(parked);
}

void Watches::Park(const std::shared_ptr<Watch>& watch) {
  parked_[watch->filter.job].insert(watch);
  if (!watch->linger.has_value() || std::exchange(watch->lingers, true)) return;
  lingering_.emplace(*watch->linger, watch);
}

void Watches::Wake(const std::set<JobId>& changed) {
  if (changed.empty()) return;
  const auto wake = [&](const JobId& job) {
    const auto found = parked_.find(job);
    if (found == parked_.end()) return;
    waiting_.insert(waiting_.end(), found->second.begin(), found->second.end());
    parked_.erase(found);
  };
  wake(JobId());
  for (const JobId& job : changed) wake(job);
}

std::optional<WatchPage> Watches::AtEnd(const core::Core& core, SteadyTime now, Watch& watch) {
  if (!watch.follow) return WatchPage{{}, true, absl::OkStatus()};
  if (watch.filter.job.empty() || !HasEnded(core, watch.filter.job)) return std::nullopt;
  if (core.Stored(watch.filter.job) == nullptr) {
    return WatchPage{{}, true, absl::NotFoundError(absl::StrCat("job ", watch.filter.job.value(), " was deleted"))};
  }
  if (watch.saw_running && !watch.linger.has_value()) watch.linger = now + kLinger;
  if (watch.linger.has_value() && *watch.linger > now) return std::nullopt;
  if (ledger_->HasStaged(watch.filter.job)) return std::nullopt;
  return WatchPage{{}, true, absl::OkStatus()};
}

// nullopt: there is nothing for it now.
absl::StatusOr<std::optional<WatchPage>> Watches::Read(const core::Core& core, SteadyTime now, Watch& watch) {
  WatchPage result;
  if (watch.snapshot) {
    watch.snapshot = false;
    const absl::StatusOr<Job> job = core.GetJob(watch.filter.job);
    if (job.ok()) {
      watch.snapshot_at = ledger_->last_sequence();
      WatchItem& item = result.items.emplace_back();
      item.set_job(job->id());
      *item.mutable_snapshot() = *job;
      return result;
    }
  }
  if (watch.tail.has_value() && !watch.tail->found) {
    if (absl::Status status = ledger_->FindTail(*watch.tail); !status.ok()) return status;
    watch.after = watch.tail->after;
    if (!watch.tail->found) return result;  // an empty page, so that other readers get their turn
  }
  while (true) {
    absl::StatusOr<StreamPage> page = ledger_->Read(watch.filter, watch.after);
    if (!page.ok()) return page.status();
    bool hidden = false;
    for (StreamItem& item : page->items) {
      if (!watch.follow && item.sequence > watch.end) break;
      if (!MayRead(core, watch, item.job)) {
        hidden = true;
        continue;
      }
      if (watch.tail.has_value() && item.sequence == watch.tail->after + 1 &&
          std::holds_alternative<LogChunk>(item.body)) {
        SkipLines(watch.tail->skip_lines, std::get<LogChunk>(item.body));
      }
      result.items.push_back(ToWatchItem(std::move(item), watch.snapshot_at));
    }
    watch.after = page->next;
    if (!result.items.empty()) return result;
    if (!page->more || (!watch.follow && watch.after >= watch.end)) return AtEnd(core, now, watch);
    if (hidden) return result;  // an empty page, so that other readers get their turn
  }
}

absl::StatusOr<bool> Watches::Serve(const core::Core& core, SteadyTime now) {
  while (!lingering_.empty() && lingering_.begin()->first <= now) {
    const std::shared_ptr<Watch> watch = lingering_.begin()->second.lock();
    lingering_.erase(lingering_.begin());
    if (watch != nullptr && !watch->closed) Wake({watch->filter.job});
  }
  for (size_t served = 0; served < kServedAtOnce && !waiting_.empty(); ++served) {
    const std::shared_ptr<Watch> watch = std::move(waiting_.front());
    waiting_.pop_front();
    if (watch->closed || watch->ready == nullptr) continue;
    if (const absl::Status& end = closed_.ok() ? watch->revoked : closed_; !end.ok()) {
      std::exchange(watch->ready, nullptr)({{}, true, end});
      continue;
    }
    absl::StatusOr<std::optional<WatchPage>> page = Read(core, now, *watch);
    if (!page.ok()) return page.status();
    if (page->has_value()) {
      if ((*page)->end) watch->open = nullptr;
      std::exchange(watch->ready, nullptr)(**std::move(page));
    } else {
      Park(watch);
    }
  }
  return !waiting_.empty();
}

std::optional<SteadyTime> Watches::NextDeadline() const {
  if (lingering_.empty()) return std::nullopt;
  return lingering_.begin()->first;
}

void Watches::Revoke(const std::string& token, const absl::Status& why) {
  const auto [begin, end] = by_token_.equal_range(token);
  for (auto it = begin; it != end; ++it) {
    const std::shared_ptr<Watch> watch = it->second.lock();
    if (watch == nullptr) continue;
    watch->revoked = why;
    if (const auto parked = parked_.find(watch->filter.job); parked != parked_.end()) parked->second.erase(watch);
    waiting_.push_back(watch);
  }
  by_token_.erase(begin, end);
}

void Watches::CloseAll(const absl::Status& why) {
  closed_ = why;
  for (const auto& [job, watches] : parked_) waiting_.insert(waiting_.end(), watches.begin(), watches.end());
  parked_.clear();
}

}  // namespace muster::server
