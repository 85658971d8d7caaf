// A group whose ranks are threads of one process, for tests of the engine and of schedules.
#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "worker/collectives/group.h"

namespace muster::collectives {

// Returns one group per rank, each for one thread. Sums are in rank order: bit-equal on every run.
std::vector<std::unique_ptr<Group>> MakeThreads(int size, absl::Duration timeout = absl::Seconds(60));

}  // namespace muster::collectives
