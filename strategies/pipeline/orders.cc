#include "strategies/pipeline/orders.h"

#include <algorithm>
#include <array>

namespace muster::pipeline {
namespace {

// How many microbatches pass the chunks together, one group after the other: as many as there are stages, so that the
// first is ready for the next chunk when the last leaves this one. Those that are left over go with the first few
// groups: a later group that is larger would wait for microbatches that come after those it waits for, and a last one
// of the left-over ones alone would idle. A few, so that steps of many microbatches differ only in how many groups are
// alike.
std::vector<uint32_t> GroupsOf(const OrderOptions& options) {
  constexpr uint32_t kLarger = 4;
  const uint32_t groups = std::max(1u, options.microbatches / options.stages);
  if (groups == 1) return {options.microbatches};
  std::vector<uint32_t> sizes(groups, options.stages);
  const uint32_t left_over = options.microbatches % options.stages;
  for (uint32_t i = 0; i < left_over; ++i) ++sizes[i % std::min(groups, kLarger)];
  return sizes;
}

// All forwards, or all backwards, in the order in which a stage computes them.
std::vector<Phase> InGroups(const std::vector<uint32_t>& sizes, uint32_t chunks, PhaseKind kind) {
  std::vector<Phase> phases;
  uint32_t first = 0;
  for (const uint32_t size : sizes) {
    for (uint32_t c = 0; c < chunks; ++c) {
      const uint32_t chunk = kind == PhaseKind::kBackward ? chunks - 1 - c : c;
      for (uint32_t m = first; m < first + size; ++m) {
        phases.push_back({kind, static_cast<int32_t>(chunk), static_cast<int32_t>(m)});
      }
    }
    first += size;
  }
  return phases;
}

// Forwards before a stage's first backward. The last chunk's first microbatch must get through all chunks before this
// stage, and then back through all stages after it.
size_t WarmUp(const OrderOptions& options, uint32_t stage) {
  const size_t after = options.stages - 1 - stage;  // stages
  if (options.chunks == 1) return std::min<size_t>(after, options.microbatches);
  const size_t through = 2 * after + (options.chunks - 1) * size_t{GroupsOf(options)[0]};
  return std::min(through, size_t{options.chunks} * options.microbatches);
}

}  // namespace

std::vector<Phase> GPipe(const OrderOptions& options) {
  const std::vector<uint32_t> each(options.microbatches, 1);
  std::vector<Phase> phases = InGroups(each, options.chunks, PhaseKind::kForward);
  for (const Phase& phase : InGroups(each, options.chunks, PhaseKind::kBackward)) phases.push_back(phase);
  return phases;
}

std::vector<Phase> OneForwardOneBackward(const OrderOptions& options, uint32_t stage) {
  const std::vector<uint32_t> groups = GroupsOf(options);
  const std::vector<Phase> forward = InGroups(groups, options.chunks, PhaseKind::kForward),
                           backward = InGroups(groups, options.chunks, PhaseKind::kBackward);
  const size_t all = forward.size(), warm_up = WarmUp(options, stage);
  std::vector<Phase> phases(forward.begin(), forward.begin() + static_cast<std::ptrdiff_t>(warm_up));
  for (size_t i = 0; i < all; ++i) {
    if (warm_up + i < all) phases.push_back(forward[warm_up + i]);
    phases.push_back(backward[i]);
  }
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

uint32_t LeastInFlight(PipelineSchedule schedule, const OrderOptions& options, uint32_t stage) {
  const uint32_t all = options.chunks * options.microbatches;
  if (options.stages == 1) return 1;
  if (schedule == PIPELINE_SCHEDULE_GPIPE) return all;
  if (schedule == PIPELINE_SCHEDULE_ZERO_BUBBLE && options.chunks > 1) {
    return std::min(options.microbatches, 2 * (options.stages - stage) - 1);
  }
  return std::min(all, static_cast<uint32_t>(WarmUp(options, stage)) + 1);
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
