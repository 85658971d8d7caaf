// Readers of the stream. A reader asks for a page when it has passed on the one before, so one that does not read costs
// one page; it is parked while there is nothing new. Semantics: Jobs.Watch in proto/jobs_service.proto.
//
// Not thread-safe: the loop owns it, and calls it only between commits, so that readers see what is on disk.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
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

// One reader's place. Only Watches looks inside.
struct Watch;

struct WatchPage {
  std::vector<WatchItem> items;
  bool end = false;     // nothing follows; `status` is the stream's
  absl::Status status;  // OK: all was delivered
};

class Watches {
 public:
  using Ready = std::function<void(WatchPage)>;

  // Log lines may arrive a moment after the end of their job; a reader that saw it end waits this long for them.
  static constexpr absl::Duration kLinger = absl::Milliseconds(300);

  explicit Watches(Ledger* ledger) : ledger_(ledger) {}

  // A reader of `job` (found by the caller; empty: of all). InvalidArgument: a cursor that no coordinator made, or with
  // `tail`. Unavailable: shutting down.
  absl::StatusOr<std::shared_ptr<Watch>> Open(const core::Core& core, const WatchRequest& request, const JobId& job);

  // `ready` gets the next page, now or later, once. At most one call at a time for each reader.
  void Next(const std::shared_ptr<Watch>& watch, Ready ready);
  // The reader has gone; its `ready` is not called any more.
  void Close(const std::shared_ptr<Watch>& watch);

  // Readers that are neither closed nor at their end.
  size_t open() const { return static_cast<size_t>(open_.use_count()) - 1; }

  // There are new items of these jobs (the empty id: of nodes).
  void Wake(const std::set<JobId>& changed);
  // Serves some of the readers that wait; false: none is left. The ledger's errors.
  absl::StatusOr<bool> Serve(const core::Core& core, SteadyTime now);
  std::optional<SteadyTime> NextDeadline() const;

  // Ends all, and any later one, with `why`.
  void CloseAll(const absl::Status& why);

 private:
  void Park(const std::shared_ptr<Watch>& watch);
  absl::StatusOr<std::optional<WatchPage>> Read(const core::Core& core, SteadyTime now, Watch& watch);
  std::optional<WatchPage> AtEnd(const core::Core& core, SteadyTime now, Watch& watch);

  Ledger* const ledger_;
  std::deque<std::shared_ptr<Watch>> waiting_;                 // to be served, in order
  std::map<JobId, std::set<std::shared_ptr<Watch>>> parked_;   // until there is something of that job; empty: any
  std::multimap<SteadyTime, std::weak_ptr<Watch>> lingering_;  // parked until then at most
  absl::Status closed_;
  const std::shared_ptr<const char> open_ = std::make_shared<const char>();  // each reader holds it too
};

}  // namespace muster::server
