#include "coordinator/notify/feed.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "coordinator/server/cursor.h"

namespace muster::notify {
namespace {

using server::Turn;

WatchRequest EventsAfter(const std::string& cursor) {
  WatchRequest request;
  request.set_events(true);
  request.set_follow(true);
  request.set_cursor(cursor);
  return request;
}

}  // namespace

std::optional<Feed::Page> Feed::Next() {
  loop_->Post([self = shared_from_this()](Turn& turn) {
    turn.AfterCommit([self, &core = turn.core(), &ledger = turn.ledger(), &watches = turn.watches()] {
      self->Ask(core, ledger, watches);
    });
  });
  const absl::MutexLock lock(&mutex_);
  const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || page_.has_value(); };
  mutex_.Await(absl::Condition(&done));
  return closed_ ? std::nullopt : std::exchange(page_, std::nullopt);
}

void Feed::Close() {
  Put(std::nullopt);
  loop_->Post([self = shared_from_this()](Turn& turn) {
    turn.AfterCommit([self, &watches = turn.watches()] {
      if (self->watch_ != nullptr) watches.Close(std::exchange(self->watch_, nullptr));
    });
  });
}

void Feed::Put(std::optional<Page> page) {
  const absl::MutexLock lock(&mutex_);
  if (page.has_value()) {
    page_ = std::move(page);
  } else {
    closed_ = true;
  }
}

void Feed::Ask(const core::Core& core, server::Ledger& ledger, server::Watches& watches) {
  {
    const absl::MutexLock lock(&mutex_);
    if (closed_) return;
  }
  if (watch_ == nullptr) {
    const bool first = cursor_.empty();
    absl::StatusOr<std::shared_ptr<server::Watch>> watch = absl::InvalidArgumentError("");
    if (!first) watch = watches.Open(core, EventsAfter(cursor_), JobId());
    if (!first && absl::IsInvalidArgument(watch.status())) {
      LogWarn("the saved position is not in this store; notices continue from now", {{"error", watch.status()}});
    }
    if (absl::IsInvalidArgument(watch.status())) {
      cursor_ = server::CursorOf(ledger.last_sequence());
      watch = watches.Open(core, EventsAfter(cursor_), JobId());
      if (watch.ok()) {
        // So that the place is known on disk before anything happens after it.
        watch_ = *std::move(watch);
        return Put(Page{{}, cursor_});
      }
    }
    if (!watch.ok()) return Put(std::nullopt);
    watch_ = *std::move(watch);
  }
  watches.Next(watch_, [self = shared_from_this(), &core, &ledger](const server::WatchPage& page) {
    self->Take(page, core, ledger);
  });
}

void Feed::Take(const server::WatchPage& page, const core::Core& core, const server::Ledger& ledger) {
  Page taken;
  for (const WatchItem& item : page.items) {
    if (!item.cursor().empty()) cursor_ = item.cursor();
    if (!item.has_event()) continue;
    const absl::StatusOr<uint64_t> sequence = server::ParseCursor(item.cursor());
    Notice& notice = taken.notices.emplace_back();
    notice.id = absl::StrCat(ledger.store_id(), "-", sequence.value_or(0));
    notice.cursor = item.cursor();
    notice.event = item.event();
    const Job* job = core.Stored(JobId(item.event().job()));
    if (job == nullptr) continue;
    notice.user = job->owner();
    notice.project = job->project().empty() ? "default" : job->project();
    notice.labels.assign(job->labels().begin(), job->labels().end());
  }
  if (page.end) return Put(std::nullopt);
  taken.cursor = cursor_;
  Put(std::move(taken));
}

}  // namespace muster::notify
