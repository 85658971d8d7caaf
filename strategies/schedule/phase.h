// The order in which a stage of a pipeline computes, as the builder of schedules takes it. Pure.
#pragma once

#include <cstdint>

namespace muster {

enum class PhaseKind : uint8_t {
  kForward,
  kBackward,         // whole, unless the order has kBackwardWeights: then without the gradients of parameters
  kBackwardWeights,  // these, of the units whose backward splits (SplitsBackward in build.h)
};

// The passes of one microbatch through the units of one chunk (Inventory.chunks), in their order.
struct Phase {
  PhaseKind kind = PhaseKind::kForward;
  int32_t chunk = 0;
  int32_t microbatch = 0;
  friend bool operator==(const Phase&, const Phase&) = default;
};

}  // namespace muster
