#include "coordinator/server/feed.h"

#include <utility>

#include "common/log/log.h"
#include "coordinator/server/cursor.h"

namespace muster::server {
namespace {

WatchRequest ItemsAfter(const std::string& cursor, bool metrics) {
  WatchRequest request;
  request.set_events(true);
  request.set_metrics(metrics);
  request.set_follow(true);
  request.set_cursor(cursor);
  return request;
}

}  // namespace

std::optional<Feed::Page> Feed::Next(absl::Duration longest) {
  bool ask = false;
  {
    const absl::MutexLock lock(&mutex_);
    ask = !std::exchange(asked_, true);
  }
  if (ask) {
    loop_->Post([self = shared_from_this()](Turn& turn) {
      turn.AfterCommit([self, &core = turn.core(), &ledger = turn.ledger(), &watches = turn.watches()] {
        self->Ask(core, ledger, watches);
      });
    });
  }
  const absl::MutexLock lock(&mutex_);
  const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || page_.has_value(); };
  const bool in_time = mutex_.AwaitWithTimeout(absl::Condition(&done), longest);
  if (closed_) return std::nullopt;
  if (!in_time) return Page{};
  asked_ = false;
  return std::exchange(page_, std::nullopt);
}

std::map<std::string, Job> Feed::Look(std::vector<std::string> ids, std::function<bool(const Job&)> wanted) {
  {
    const absl::MutexLock lock(&mutex_);
    if (closed_) return {};
  }
  loop_->Post([self = shared_from_this(), ids = std::move(ids), wanted = std::move(wanted)](Turn& turn) {
    turn.AfterCommit([self, ids, wanted, &core = turn.core()] {
      std::map<std::string, Job> jobs;
      for (const std::string& id : ids) {
        if (const Job* job = core.Stored(JobId(id)); job != nullptr && wanted(*job)) jobs[id] = *job;
      }
      self->PutJobs(std::move(jobs));
    });
  });
  const absl::MutexLock lock(&mutex_);
  const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || looked_.has_value(); };
  mutex_.Await(absl::Condition(&done));
  return std::exchange(looked_, std::nullopt).value_or(std::map<std::string, Job>());
}

void Feed::Close() {
  Put(std::nullopt);
  loop_->Post([self = shared_from_this()](Turn& turn) {
    turn.AfterCommit([self, &watches = turn.watches()] {
      if (self->watch_ != nullptr) watches.Close(std::exchange(self->watch_, nullptr));
    });
  });
}

void Feed::PutJobs(std::map<std::string, Job> jobs) {
  const absl::MutexLock lock(&mutex_);
  looked_ = std::move(jobs);
}

void Feed::Put(std::optional<Page> page) {
  const absl::MutexLock lock(&mutex_);
  if (page.has_value()) {
    page_ = std::move(page);
  } else {
    closed_ = true;
  }
}

void Feed::Ask(const core::Core& core, Ledger& ledger, Watches& watches) {
  {
    const absl::MutexLock lock(&mutex_);
    if (closed_) return;
  }
  if (watch_ == nullptr) {
    const bool now = options_.beginning == Beginning::kNow;
    absl::StatusOr<std::shared_ptr<Watch>> watch = absl::InvalidArgumentError("");
    if (!cursor_.empty()) {
      watch = watches.Open(core, ItemsAfter(cursor_, options_.metrics), JobId());
      if (absl::IsInvalidArgument(watch.status())) {
        LogWarn("the saved position is not in this store", {{"reader", options_.reader},
                                                            {"continues_from", now ? "now" : "the oldest item"},
                                                            {"error", watch.status()}});
      }
    }
    if (absl::IsInvalidArgument(watch.status())) {
      cursor_ = now ? CursorOf(ledger.last_sequence()) : "";
      watch = watches.Open(core, ItemsAfter(cursor_, options_.metrics), JobId());
      if (watch.ok() && now) {
        // So that the place is known on disk before anything happens after it.
        watch_ = *std::move(watch);
        return Put(Page{{}, {}, cursor_, ledger.store_id()});
      }
    }
    if (!watch.ok()) return Put(std::nullopt);
    watch_ = *std::move(watch);
  }
  watches.Next(watch_, [self = shared_from_this(), &core, &ledger](WatchPage page) {
    self->Take(std::move(page), core, ledger);
  });
}

void Feed::Take(WatchPage page, const core::Core& core, const Ledger& ledger) {
  Page taken;
  for (const WatchItem& item : page.items) {
    if (!item.cursor().empty()) cursor_ = item.cursor();
    if (item.job().empty() || taken.jobs.contains(item.job())) continue;
    if (const Job* job = core.Stored(JobId(item.job())); job != nullptr) taken.jobs[item.job()] = *job;
  }
  if (page.end) return Put(std::nullopt);
  taken.items = std::move(page.items);
  taken.cursor = cursor_;
  taken.store_id = ledger.store_id();
  Put(std::move(taken));
}

}  // namespace muster::server
