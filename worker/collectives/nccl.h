// Collectives between GPUs by the NCCL API, on a separate stream. Only in builds with --config=cuda.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collectives/group.h"
#include "worker/collectives/key_value.h"

namespace muster::collectives {

struct NcclOptions {
  int rank = 0;
  int size = 1;
  std::string name;  // of the group, the same on all its ranks and unique in the generation
  std::string host;  // a name or address of this machine that the other ranks reach; NCCL chooses its own interfaces
  int device = 0;    // CUDA ordinal in this process
  absl::Duration timeout = absl::Minutes(5);       // of a collective, from its issue
  absl::Duration join_timeout = absl::Minutes(5);  // for all ranks to come
};

// Rank 0 creates the NCCL id and publishes it in the rendezvous, where the others wait for it; `rendezvous` outlives
// the group. Unavailable: not all ranks joined in time, or an NCCL error. A collective starts after the work that the
// current stream holds at its issue. A watchdog thread aborts the communicator when a collective misses its deadline,
// so that no kernel waits without end; the next call returns the cause.
absl::StatusOr<std::unique_ptr<Group>> MakeNccl(const NcclOptions& options, KeyValue& rendezvous);

}  // namespace muster::collectives
