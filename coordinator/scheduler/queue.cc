#include "coordinator/scheduler/queue.h"

#include <algorithm>
#include <tuple>

namespace muster::scheduler {

void SortQueue(std::vector<Waiting>& queue) {
  std::sort(queue.begin(), queue.end(), [](const Waiting& a, const Waiting& b) {
    return std::tuple(-int64_t{a.priority}, a.sequence) < std::tuple(-int64_t{b.priority}, b.sequence);
  });
}

}  // namespace muster::scheduler
