// The state events after a place in the stream, page by page, for a thread outside of the loop.
//
//   auto feed = std::make_shared<Feed>(loop, cursor);
//   while (const std::optional<Feed::Page> page = feed->Next()) { ...; cursor = page->cursor; }
//
// Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/notify/config.h"
#include "coordinator/server/loop.h"

namespace muster::notify {

class Feed : public std::enable_shared_from_this<Feed> {
 public:
  // `cursor` empty, or of another coordinator: from now on. `loop` outlives the feed.
  Feed(server::Loop* loop, std::string cursor) : loop_(loop), cursor_(std::move(cursor)) {}

  struct Page {
    std::vector<Notice> notices;  // may be none
    std::string cursor;           // after them
  };
  // Waits for the next page. nullopt: closed, or the coordinator shuts down. One thread at a time.
  std::optional<Page> Next();
  // REQUIRES: the loop has not stopped.
  void Close();

 private:
  void Ask(const core::Core& core, server::Ledger& ledger, server::Watches& watches);
  void Take(const server::WatchPage& page, const core::Core& core, const server::Ledger& ledger);
  void Put(std::optional<Page> page) ABSL_LOCKS_EXCLUDED(mutex_);

  server::Loop* const loop_;

  // Touched by the loop's thread only.
  std::string cursor_;
  std::shared_ptr<server::Watch> watch_;

  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Page> page_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace muster::notify
