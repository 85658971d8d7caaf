// Collectives between GPUs: NCCL's own interface, on a stream of its own. In builds with --config=cuda only.
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
  std::string host;  // a name or address of this machine that the other ranks reach; NCCL finds its own ways besides
  int device = 0;    // CUDA ordinal in this process
  absl::Duration timeout = absl::Minutes(5);       // of a collective, from its issue
  absl::Duration join_timeout = absl::Minutes(5);  // for all ranks to come
};

// Rank 0 makes the id and publishes it in the rendezvous, the others wait for it there; `rendezvous` outlives the
// group. Unavailable: not all ranks came in time, or NCCL's own error. A collective waits for what the current stream
// holds at its issue. A thread watches the collectives under way: one that misses its deadline aborts the communicator,
// so that nothing waits for ever on the device, and the next call says why.
absl::StatusOr<std::unique_ptr<Group>> MakeNccl(const NcclOptions& options, KeyValue& rendezvous);

}  // namespace muster::collectives
