// The order in which waiting jobs are tried. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/ids.h"

namespace muster::scheduler {

struct Waiting {
  JobId job;
  int32_t priority = 0;
  uint64_t sequence = 0;  // of submission
};

// Higher priority first, then first in, first out.
void SortQueue(std::vector<Waiting>& queue);

}  // namespace muster::scheduler
