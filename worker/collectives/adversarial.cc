#include "worker/collectives/adversarial.h"

#include "worker/collectives/threads.h"

namespace muster::collectives {

std::vector<std::unique_ptr<Group>> MakeAdversarial(int size, absl::Duration timeout) {
  return MakeThreads(size, timeout, Delivery::kAtWaits);
}

}  // namespace muster::collectives
