// The queue order. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"

namespace muster::scheduler {

// A job that waits for slots or holds some, with its position in queue order.
struct Claim {
  JobId job;
  int32_t priority = 0;
  uint64_t sequence = 0;  // order of submission
  // How long it holds slots at most: a running job from now on, a waiting one from its start. Infinite: not known.
  absl::Duration ends_in = absl::InfiniteDuration();
  // Where there are projects: beyond its project's nominal quota, on slots that are lent to it; and how much its
  // project and its user there have used (fair_share.h).
  bool borrows = false;
  double project_load = 0, user_load = 0;
  uint32_t project = 0;  // a number for it; 0: there are no projects
};

// Jobs on their project's own slots first, then higher priority, then the project and the user who have used less, then
// first in, first out.
bool Before(const Claim& a, const Claim& b);
// Of `holder`, which has slots, and `waiting`: whether the queue order is the other way round. Jobs of one project are
// compared regardless of which of them borrows: that follows from who started first.
bool ComesAfter(const Claim& holder, const Claim& waiting);
void SortQueue(std::vector<Claim>& queue);

}  // namespace muster::scheduler
