// The stream after a place, page by page, for a thread outside of the loop.
//
//   auto feed = std::make_shared<Feed>(loop, cursor, Feed::Options{.metrics = true});
//   while (const std::optional<Feed::Page> page = feed->Next()) { ...; cursor = page->cursor; }
//
// A reader that does not ask for the next page costs nothing: the stream on disk is the queue.
//
// Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/server/loop.h"

namespace muster::server {

class Feed : public std::enable_shared_from_this<Feed> {
 public:
  enum class Beginning {
    kNow,     // what happens from the first call of Next on
    kOldest,  // everything that is kept
  };
  struct Options {
    std::string reader;                     // in the log: "notices"
    bool metrics = false;                   // beside the events
    Beginning beginning = Beginning::kNow;  // without a cursor, and with one of another store
  };

  // `cursor`: see Page; empty: from the beginning. `loop` outlives the feed.
  Feed(Loop* loop, std::string cursor, Options options)
      : loop_(loop), options_(std::move(options)), cursor_(std::move(cursor)) {}

  struct Page {
    std::vector<WatchItem> items;     // may be none
    std::map<std::string, Job> jobs;  // those of the items that are stored still, as they are now
    std::string cursor;               // after the items
    std::string store_id;
  };
  // Waits for the next page, at most so long: then one without items and cursor. nullopt: closed, or the coordinator
  // shuts down. One thread at a time.
  std::optional<Page> Next(absl::Duration longest = absl::InfiniteDuration());
  // Those of the jobs of which `wanted`, called on the loop's thread, is true, as they are now; those that are not
  // stored any more are left out. Empty: closed. Like Next.
  std::map<std::string, Job> Look(std::vector<std::string> ids, std::function<bool(const Job&)> wanted);
  // REQUIRES: the loop has not stopped.
  void Close();

 private:
  void Ask(const core::Core& core, Ledger& ledger, Watches& watches);
  void Take(WatchPage page, const core::Core& core, const Ledger& ledger);
  void Put(std::optional<Page> page) ABSL_LOCKS_EXCLUDED(mutex_);
  void PutJobs(std::map<std::string, Job> jobs) ABSL_LOCKS_EXCLUDED(mutex_);

  Loop* const loop_;
  const Options options_;

  // Touched by the loop's thread only.
  std::string cursor_;
  std::shared_ptr<Watch> watch_;

  absl::Mutex mutex_;
  bool asked_ ABSL_GUARDED_BY(mutex_) = false;  // a page is to come
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<std::map<std::string, Job>> looked_ ABSL_GUARDED_BY(mutex_);
  std::optional<Page> page_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace muster::server
