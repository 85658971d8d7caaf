// Builds a rank's configuration, with a layout as the coordinator makes it for a job.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/inventory.pb.h"
#include "proto/spec.pb.h"
#include "strategies/compile.h"
#include "worker/engine/engine.h"

namespace muster::engine {

struct Configured {
  Config config;  // groups, device and threads are the caller's to add
  strategies::Memory memory;
  Mesh mesh;
};

// Rank `rank` of `world` ranks, so many on each node, 0: all; `train` is resolved. Errors as strategies::MakeLayout.
absl::StatusOr<Configured> Configure(const Train& train, const Inventory& inventory, uint32_t world = 1,
                                     uint32_t rank = 0, uint32_t ranks_on_node = 0);

}  // namespace muster::engine
