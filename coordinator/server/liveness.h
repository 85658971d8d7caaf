// When a worker counts as disconnected because nothing comes from it. Pure.
//
//   liveness.Contact(node, now);        // with each of its messages
//   for (const Silent& silent : liveness.Check(now)) { ... }   // every half `limit`, or later
//
// Not thread-safe.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"

namespace muster::server {

class Liveness {
 public:
  explicit Liveness(absl::Duration limit) : limit_(limit) {}

  void Contact(const NodeId& node, SteadyTime now) { last_contact_[node] = now; }
  void Forget(const NodeId& node) { last_contact_.erase(node); }

  struct Silent {
    NodeId node;
    absl::Duration time;
  };
  // Those that were silent for longer than the limit. What this process itself missed, frozen or waiting for its disk,
  // does not count: everything beyond half the limit between two calls.
  std::vector<Silent> Check(SteadyTime now);

 private:
  const absl::Duration limit_;
  std::map<NodeId, SteadyTime> last_contact_;
  std::optional<SteadyTime> last_check_;
};

}  // namespace muster::server
