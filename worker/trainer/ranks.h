// Where the ranks of a generation become groups: NCCL between GPUs, Gloo between CPUs.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/worker.pb.h"
#include "strategies/schedule/schedule.h"
#include "worker/collectives/group.h"
#include "worker/collectives/key_value.h"

namespace muster::trainer {

struct Ranks {
  std::array<collectives::Group*, kGroups> groups{};  // by Op::group; null: there is none, or it has one member
  std::vector<std::unique_ptr<collectives::Group>> owned;
};

// How long ranks wait for each other, when they meet and in each collective: the coordinator's word, which is longer
// than it needs itself to name the rank that hangs or never came. So this only ends a rank that nobody ends.
absl::Duration CollectiveDeadline(const Assignment& assignment);

// Waits for all other ranks; `rendezvous` outlives the groups. `shards` ranks together hold one copy of what is
// sharded. Unavailable: a rank did not come within CollectiveDeadline; it is named.
absl::StatusOr<Ranks> JoinRanks(const Assignment& assignment, uint32_t shards, collectives::KeyValue& rendezvous);

}  // namespace muster::trainer
