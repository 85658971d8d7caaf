#include "strategies/pipeline/orders.h"

#include <algorithm>
#include <array>

namespace muster::pipeline {
namespace {

// All forwards, or all backwards, in the order in which a stage computes them.
std::vector<Phase> InGroups(const OrderOptions& options, PhaseKind kind) {
  const bool backward = kind == PhaseKind::kBackward;
  std::vector<Phase> phases;
  for (uint32_t first = 0; first < options.microbatches; first += options.stages) {
    const uint32_t end = std::min(options.microbatches, first + options.stages);
    for (uint32_t c = 0; c < options.chunks; ++c) {
      const uint32_t chunk = backward ? options.chunks - 1 - c : c;
      for (uint32_t m = first; m < end; ++m) {
        phases.push_back({kind, static_cast<int32_t>(chunk), static_cast<int32_t>(m)});
      }
    }
  }
  return phases;
}

// Forwards before a stage's first backward. The last chunk's first microbatch must get through all chunks before this
// stage, and then back through all stages after it.
size_t WarmUp(const OrderOptions& options, uint32_t stage) {
  const size_t after = options.stages - 1 - stage;  // stages
  if (options.chunks == 1) return after;
  return 2 * after + (options.chunks - 1) * options.stages;
}

}  // namespace

std::vector<Phase> GPipe(const OrderOptions& options) {
  std::vector<Phase> phases = InGroups({1, options.chunks, options.microbatches}, PhaseKind::kForward);
  for (const Phase& phase : InGroups({1, options.chunks, options.microbatches}, PhaseKind::kBackward)) {
    phases.push_back(phase);
  }
  return phases;
}

// Where the last group is not full, the order is that of a full one without the microbatches that do not exist: what is
// left of an order that does not block does not block either.
std::vector<Phase> OneForwardOneBackward(const OrderOptions& options, uint32_t stage) {
  OrderOptions full = options;
  full.microbatches = (options.microbatches + options.stages - 1) / options.stages * options.stages;
  const std::vector<Phase> forward = InGroups(full, PhaseKind::kForward),
                           backward = InGroups(full, PhaseKind::kBackward);
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

std::vector<Phase> ZeroBubbleH1(const OrderOptions& options, uint32_t stage) {
  const auto microbatches = static_cast<int32_t>(options.microbatches);
  const auto deferred = static_cast<int32_t>(std::min(stage, options.microbatches));
  std::vector<Phase> phases;
  for (const Phase& phase : OneForwardOneBackward(options, stage)) {
    phases.push_back(phase);
    const int32_t m = phase.microbatch - deferred;
    if (phase.kind == PhaseKind::kBackward && m >= 0) phases.push_back({PhaseKind::kBackwardWeights, 0, m});
  }
  for (int32_t m = microbatches - deferred; m < microbatches; ++m) {
    phases.push_back({PhaseKind::kBackwardWeights, 0, m});
  }
  return phases;
}

std::vector<Phase> ZeroBubbleV(const OrderOptions& options, uint32_t stage) {
  // Of as many as fill the pipeline; what is left without those that do not exist blocks no more than the whole.
  const auto all = static_cast<int32_t>(std::max(2 * options.stages - 1, options.microbatches));
  const auto before = static_cast<int32_t>(stage), from = static_cast<int32_t>(options.stages - stage);
  std::vector<Phase> phases;
  std::array<std::array<int32_t, 2>, 3> next{};  // microbatch, by kind and chunk
  const auto add = [&](PhaseKind kind, int32_t chunk) {
    phases.push_back({kind, chunk, next[static_cast<size_t>(kind)][static_cast<size_t>(chunk)]++});
  };
  const auto both_halves = [&](int32_t chunk) {
    add(PhaseKind::kBackward, chunk);
    add(PhaseKind::kBackwardWeights, chunk);
  };
  const auto& forwards = next[static_cast<size_t>(PhaseKind::kForward)];
  // Warm-up.
  for (int32_t i = 0; i < 2 * from - 1; ++i) add(PhaseKind::kForward, 0);
  for (int32_t i = 0; i < before; ++i) add(PhaseKind::kForward, 1), add(PhaseKind::kForward, 0);
  for (int32_t i = 0; i < from; ++i) add(PhaseKind::kForward, 1), both_halves(1);
  while (forwards[1] < forwards[0] || forwards[0] < all) {
    if (forwards[0] < all) add(PhaseKind::kForward, 0);
    both_halves(0);
    add(PhaseKind::kForward, 1);
    both_halves(1);
  }
  // The end of the step: inputs first, so that the stages before can go on.
  for (int32_t i = 0; i < before; ++i) add(PhaseKind::kBackward, 0), add(PhaseKind::kBackward, 1);
  for (int32_t i = 0; i < from; ++i) both_halves(0);
  for (const int32_t chunk : {1, 0}) {
    while (next[2][static_cast<size_t>(chunk)] < all) add(PhaseKind::kBackwardWeights, chunk);
  }
  std::erase_if(phases,
                [&](const Phase& phase) { return phase.microbatch >= static_cast<int32_t>(options.microbatches); });
  return phases;
}

std::vector<Phase> OrderOf(PipelineSchedule schedule, const OrderOptions& options, uint32_t stage) {
  switch (schedule) {
    case PIPELINE_SCHEDULE_GPIPE:
      return GPipe(options);
    case PIPELINE_SCHEDULE_ZERO_BUBBLE:
      return options.chunks == 1 ? ZeroBubbleH1(options, stage) : ZeroBubbleV(options, stage);
    default:
      return OneForwardOneBackward(options, stage);
  }
}

}  // namespace muster::pipeline
