// A group whose ranks are threads of one process, for tests of the engine and of schedules.
#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "worker/collectives/group.h"

namespace muster::collectives {

// When a collective reads and writes the ranks' tensors.
enum class Delivery {
  kAtIssue,  // when its last rank issues it
  kAtWaits,  // when its last rank waits for it, and unkindly: see adversarial.h
};

// Returns one group per rank, each for one thread. Sums are in rank order: bit-equal on every run.
std::vector<std::unique_ptr<Group>> MakeThreads(int size, absl::Duration timeout = absl::Seconds(60),
                                                Delivery delivery = Delivery::kAtIssue);

}  // namespace muster::collectives
