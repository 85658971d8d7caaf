// State shared by the transports of one group: its peers, and whether the group has failed.
#pragma once

#include <atomic>
#include <memory>

#include "absl/time/time.h"
#include "worker/collectives/peers.h"

namespace muster::collectives {

struct GroupStatus {
  std::unique_ptr<Peers> peers;
  absl::Duration timeout;  // of a collective
  std::atomic<bool> failed = false;
};

}  // namespace muster::collectives
