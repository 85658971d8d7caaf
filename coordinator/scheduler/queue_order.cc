#include "coordinator/scheduler/queue_order.h"

#include <algorithm>
#include <tuple>

namespace muster::scheduler {

bool Before(const Claim& a, const Claim& b) {
  return std::tuple(-int64_t{a.priority}, a.sequence) < std::tuple(-int64_t{b.priority}, b.sequence);
}

void SortQueue(std::vector<Claim>& queue) { std::sort(queue.begin(), queue.end(), Before); }

}  // namespace muster::scheduler
