// The order in which a stage of a pipeline computes, as the builder of schedules takes it. Pure.
#pragma once

#include <cstdint>

namespace muster {

// The passes of one microbatch through the units of one chunk (Inventory.chunks), in their order.
struct Phase {
  bool backward = false;
  int32_t chunk = 0;
  int32_t microbatch = 0;
  friend bool operator==(const Phase&, const Phase&) = default;
};

}  // namespace muster
