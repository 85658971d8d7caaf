// Where the ranks of a generation become one group: NCCL between GPUs, Gloo between CPUs.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/worker.pb.h"
#include "worker/collectives/group.h"
#include "worker/collectives/key_value.h"

namespace muster::trainer {

// Waits for all other ranks; `rendezvous` outlives the group. Null: the rank is alone. Unavailable: a rank did not come
// within a quarter of an hour; it is named.
absl::StatusOr<std::unique_ptr<collectives::Group>> JoinRanks(const Assignment& assignment,
                                                              collectives::KeyValue& rendezvous);

}  // namespace muster::trainer
