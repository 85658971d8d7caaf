// Collectives between CPU ranks: LibTorch's Gloo over TCP, a full mesh, so at most 64 ranks. If all ranks of a group
// are on one machine and may read each other's memory, reductions and gathers, and the messages of a group of two, use
// memory reads instead (direct.h), bit-equal and at less than half the CPU time; Gloo still does the joining, and the
// messages of larger groups.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collectives/group.h"
#include "worker/collectives/key_value.h"

namespace muster::collectives {

struct GlooOptions {
  int rank = 0;
  int size = 1;
  std::string name;                           // of the group, the same on all its ranks and unique in the generation
  std::string host;                           // a name or address of this machine that the other ranks reach
  absl::Duration timeout = absl::Minutes(5);  // of a collective
  absl::Duration join_timeout = absl::Minutes(5);  // for all ranks to come
  bool direct = true;                              // false on any rank: the whole group uses Gloo alone
};

// Connects to every other rank; `rendezvous` outlives the group. Unavailable: a rank did not come, or could
// not be reached; it is named. InvalidArgument: more than 64 ranks, or `host` is not this machine.
absl::StatusOr<std::unique_ptr<Group>> MakeGloo(const GlooOptions& options, KeyValue& rendezvous);

}  // namespace muster::collectives
