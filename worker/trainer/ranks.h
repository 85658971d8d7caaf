// Forms the process groups of a generation: NCCL between GPUs, Gloo between CPUs.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/worker.pb.h"
#include "strategies/schedule/schedule.h"
#include "worker/collectives/group.h"
#include "worker/collectives/key_value.h"

namespace muster::trainer {

struct Ranks {
  std::array<collectives::Group*, kGroups> groups{};  // indexed by Op::group; null: no such group, or it has one member
  std::vector<std::unique_ptr<collectives::Group>> owned;
};

// The timeout for joining the groups and for each collective. The coordinator chooses it longer than its own hang
// detection, so it only ends ranks that the coordinator does not end.
absl::Duration CollectiveDeadline(const Assignment& assignment);

// By Op::group: what the ranks of a group must agree on before their first collective (CollectivesDigest). Empty for
// kExchangeGroup: units exchange nothing, and there is no such group.
using GroupDigests = std::array<std::string, kGroups>;

// Waits for all other ranks; `rendezvous` outlives the groups. A replica consists of `shards` ranks.
// Unavailable: a rank did not join within CollectiveDeadline; the message names it. FailedPrecondition: this rank would
// issue other collectives than the first rank of a group; the message names both.
absl::StatusOr<Ranks> JoinRanks(const Assignment& assignment, uint32_t shards, const GroupDigests& digests,
                                collectives::KeyValue& rendezvous);

}  // namespace muster::trainer
