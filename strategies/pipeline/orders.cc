#include "strategies/pipeline/orders.h"

#include <algorithm>

namespace muster::pipeline {
namespace {

// All forwards, or all backwards, in the order in which a stage computes them.
std::vector<Phase> InGroups(const OrderOptions& options, bool backward) {
  std::vector<Phase> phases;
  for (uint32_t first = 0; first < options.microbatches; first += options.stages) {
    const uint32_t end = std::min(options.microbatches, first + options.stages);
    for (uint32_t c = 0; c < options.chunks; ++c) {
      const uint32_t chunk = backward ? options.chunks - 1 - c : c;
      for (uint32_t m = first; m < end; ++m) {
        phases.push_back({backward, static_cast<int32_t>(chunk), static_cast<int32_t>(m)});
      }
    }
  }
  return phases;
}

// Forwards before a stage's first backward. The last chunk's first microbatch must get through all chunks before this
// stage, and then back through all stages after it.
size_t WarmUp(const OrderOptions& options, uint32_t stage) {
  const size_t behind = options.stages - 1 - stage;
  if (options.chunks == 1) return behind;
  return 2 * behind + (options.chunks - 1) * options.stages;
}

}  // namespace

std::vector<Phase> GPipe(const OrderOptions& options) {
  std::vector<Phase> phases = InGroups({1, options.chunks, options.microbatches}, /*backward=*/false);
  for (const Phase& phase : InGroups({1, options.chunks, options.microbatches}, /*backward=*/true)) {
    phases.push_back(phase);
  }
  return phases;
}

// Where the last group is not full, the order is that of a full one without the microbatches that do not exist: what is
// left of an order that does not block does not block either.
std::vector<Phase> OneForwardOneBackward(const OrderOptions& options, uint32_t stage) {
  OrderOptions full = options;
  full.microbatches = (options.microbatches + options.stages - 1) / options.stages * options.stages;
  const std::vector<Phase> forward = InGroups(full, /*backward=*/false), backward = InGroups(full, /*backward=*/true);
  const size_t all = forward.size(), warm_up = std::min(all, WarmUp(full, stage));
  std::vector<Phase> phases(forward.begin(), forward.begin() + static_cast<std::ptrdiff_t>(warm_up));
  for (size_t i = 0; i < all; ++i) {
    if (warm_up + i < all) phases.push_back(forward[warm_up + i]);
    phases.push_back(backward[i]);
  }
  std::erase_if(phases,
                [&](const Phase& phase) { return phase.microbatch >= static_cast<int32_t>(options.microbatches); });
  return phases;
}

std::vector<Phase> OrderOf(PipelineSchedule schedule, const OrderOptions& options, uint32_t stage) {
  return schedule == PIPELINE_SCHEDULE_GPIPE ? GPipe(options) : OneForwardOneBackward(options, stage);
}

}  // namespace muster::pipeline
