#include "coordinator/scheduler/queue_order.h"

#include <algorithm>
#include <tuple>

namespace muster::scheduler {

bool Before(const Claim& a, const Claim& b) {
  return std::tuple(a.borrows, -int64_t{a.priority}, a.project_load, a.user_load, a.sequence) <
         std::tuple(b.borrows, -int64_t{b.priority}, b.project_load, b.user_load, b.sequence);
}

bool ComesAfter(const Claim& holder, const Claim& waiting) {
  if (holder.project == 0 || holder.project != waiting.project) return Before(waiting, holder);
  Claim same = holder;
  same.borrows = waiting.borrows;
  return Before(waiting, same);
}

void SortQueue(std::vector<Claim>& queue) { std::sort(queue.begin(), queue.end(), Before); }

}  // namespace muster::scheduler
