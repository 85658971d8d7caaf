// Readers of the stream. A reader asks for the next page after it has delivered the previous one, so a slow reader
// costs one page; it is parked while there is nothing new. Semantics: Jobs.Watch in proto/jobs_service.proto.
//
// Not thread-safe: the loop owns it, and calls it only between commits, so readers see only what is on disk.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "coordinator/core/core.h"
#include "coordinator/server/ledger.h"
#include "proto/jobs.pb.h"

namespace muster::server {

// One reader's position. Only Watches accesses it.
struct Watch;

// Who reads.
struct WatchReader {
  std::string token;                         // that it showed; or empty
  std::function<bool(const Job&)> may_read;  // null: every job
};

struct WatchPage {
  std::vector<WatchItem> items;
  bool end = false;     // last page; `status` is the stream's
  absl::Status status;  // OK: all was delivered
};

class Watches {
 public:
  using Ready = std::function<void(WatchPage)>;

  // Log lines may arrive shortly after the end of their job; a reader that saw it end waits this long for them.
  static constexpr absl::Duration kLinger = absl::Milliseconds(300);

  explicit Watches(Ledger* ledger) : ledger_(ledger) {}

  // A reader of `job`, which the caller has looked up (empty: all jobs that it may read).
  // InvalidArgument: an invalid cursor, or a cursor with `tail`. Unavailable: shutting down.
  absl::StatusOr<std::shared_ptr<Watch>> Open(const core::Core& core, const WatchRequest& request, const JobId& job,
                                              WatchReader reader = {});

  // Calls `ready` once with the next page, now or later. At most one pending call for each reader.
  void Next(const std::shared_ptr<Watch>& watch, Ready ready);
  // Called when the reader disconnects; its `ready` is not called any more.
  void Close(const std::shared_ptr<Watch>& watch);

  // Readers that are neither closed nor finished.
  size_t open() const { return static_cast<size_t>(open_.use_count()) - 1; }

  // These jobs have new items (the empty id: events of nodes).
  void Wake(const std::set<JobId>& changed);
  // Serves some of the waiting readers; false: none is left. Errors as the ledger's.
  absl::StatusOr<bool> Serve(const core::Core& core, SteadyTime now);
  std::optional<SteadyTime> NextDeadline() const;

  // Ends the readers that showed this token.
  void Revoke(const std::string& token, const absl::Status& why);
  // Ends all readers, and any later one, with `why`.
  void CloseAll(const absl::Status& why);

 private:
  void Park(const std::shared_ptr<Watch>& watch);
  absl::StatusOr<std::optional<WatchPage>> Read(const core::Core& core, SteadyTime now, Watch& watch);
  std::optional<WatchPage> AtEnd(const core::Core& core, SteadyTime now, Watch& watch);

  Ledger* const ledger_;
  std::deque<std::shared_ptr<Watch>> waiting_;                 // waiting readers, in order
  std::map<JobId, std::set<std::shared_ptr<Watch>>> parked_;   // until that job has new items; empty: any job
  std::multimap<SteadyTime, std::weak_ptr<Watch>> lingering_;  // parked until at most this time
  std::multimap<std::string, std::weak_ptr<Watch>> by_token_;
  absl::Status closed_;
  const std::shared_ptr<const char> open_ = std::make_shared<const char>();  // every reader holds a reference
};

}  // namespace muster::server
