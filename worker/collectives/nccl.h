// Collectives between GPUs by the NCCL API, on a stream of their own. Only in builds with --config=cuda.
//
//   auto world = MakeNccl({.rank = 5, .size = 8, .name = "world", ...}, rendezvous);
//   auto shards = SplitNccl(**world, /*color=*/1, {.rank = 1, .size = 4, .name = "shards-1", ...}, rendezvous);
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collectives/device_group.h"
#include "worker/collectives/key_value.h"

namespace muster::collectives {

struct NcclOptions {
  int rank = 0;
  int size = 1;
  std::string name;  // of the group, the same on all its ranks and unique in the generation
  std::string host;  // a name or address of this machine that the other ranks reach; NCCL's own: docs/networks.md
  int device = 0;    // CUDA ordinal in this process
  absl::Duration timeout = absl::Minutes(5);       // of a collective, from its issue
  absl::Duration join_timeout = absl::Minutes(5);  // for all ranks to come
};

// Rank 0 creates the NCCL id and publishes it in the rendezvous, where the others wait for it; `rendezvous` outlives
// the group. Unavailable: not all ranks joined in time, or an NCCL or CUDA error. A collective starts after the work
// that the current stream holds at its issue. Deadlines, failure and the end are those of device_group.h.
//
// Sets NCCL_LAUNCH_ORDER_IMPLICIT=1 in the process, unless it is set: the groups of a rank share its device, and
// without one order of launches they may deadlock. All groups of a device must be used by one thread.
absl::StatusOr<std::unique_ptr<DeviceGroup>> MakeNccl(const NcclOptions& options, KeyValue& rendezvous);

// A group of those ranks of `world` that give the same `color`: no second id and no second meeting, as NCCL connects it
// through the communicator that is there (ncclCommSplit). Every rank of `world` calls it, in the same order of splits;
// one of kNoColor is in no part and gets null. options.rank is the rank in the part, and the device and deadlines are
// those of `world`. Errors as MakeNccl.
absl::StatusOr<std::unique_ptr<DeviceGroup>> SplitNccl(DeviceGroup& world, int color, const NcclOptions& options,
                                                       KeyValue& rendezvous);

}  // namespace muster::collectives
