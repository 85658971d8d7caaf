// A Watch that survives coordinator restarts: when the stream breaks, it reopens after the last item received.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/client.h"
#include "proto/jobs.pb.h"

namespace muster::cli {

struct Followed {
  enum class Kind {
    kItem,         // `item`
    kNothing,      // nothing came in time
    kLost,         // the stream broke and is being reopened
    kBack,         // reopened
    kEnded,        // no more items: `status`
    kInterrupted,  // Ctrl-C
  };
  Kind kind = Kind::kNothing;
  v1::WatchItem item;
  absl::Status status;  // ok: the newest item, or the end of the job
};

// Owns a thread that reads the stream. Call `Next` from one thread.
class Follower {
 public:
  // `give_up_after`: how long the coordinator may be away. `client` outlives this object.
  Follower(Client& client, const v1::WatchRequest& request, absl::Duration give_up_after);
  // Cancels the call and joins the thread.
  ~Follower();

  // Waits at most `at_most`. kEnded and kInterrupted repeat.
  Followed Next(absl::Duration at_most);

 private:
  class Loop;
  const std::unique_ptr<Loop> loop_;
};

}  // namespace muster::cli
