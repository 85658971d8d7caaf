// Measures the links between ranks by messages of the group that they train with.
//
//   const auto links = MeasureLinks(world, {{0, 2}, {0, 4}, {2, 4}}, absl::Milliseconds(800), device);
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collectives/group.h"

namespace muster::collectives {

// From the calling rank to `to`. The other direction is measured by the other rank.
struct MeasuredLink {
  int to = 0;
  double bytes_per_second = 0;  // of the largest message that the time allowed, without its latency
  double latency_seconds = 0;   // one way: half of the lower quartile of small round trips
  // What a core could receive from `to` while it sends as much there, if it did nothing else: from the processor time
  // that messages of 32 KiB and more took here in both directions. 0: the link is too slow for such.
  double socket_bytes_per_second = 0;
};

// Since some time before: that passed, and that all threads of the process took of processors.
absl::Duration SteadyNow();
absl::Duration ProcessorTime();

// Called by every rank of `group` that a pair names, with at least all pairs that name it, and in the same order on
// all. A rank takes those pairs one after another, the first of a pair measures before the second; so pairs without a
// common rank are measured at the same time, and no rank measures two links at once. `budget` is for all links of a
// rank together. A link whose round trip takes more than a tenth of its share takes longer than that: two round trips
// of two messages each are the least. On a CPU, receives are posted ahead, as collectives do; on a GPU they cannot be,
// so a latency there includes the launch of a kernel. Errors are those of Send and Recv, and are final.
// Clocks do not go back; by default the machine's.
absl::StatusOr<std::vector<MeasuredLink>> MeasureLinks(Group& group, const std::vector<std::pair<int, int>>& pairs,
                                                       absl::Duration budget, c10::Device device,
                                                       const std::function<absl::Duration()>& now = SteadyNow,
                                                       const std::function<absl::Duration()>& used = ProcessorTime);

}  // namespace muster::collectives
