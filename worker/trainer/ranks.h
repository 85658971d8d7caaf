// Forms the process groups of a generation: NCCL between GPUs, Gloo between CPUs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/worker.pb.h"
#include "strategies/compile.h"
#include "strategies/schedule/schedule.h"
#include "worker/collectives/group.h"
#include "worker/collectives/key_value.h"

namespace muster::trainer {

struct Ranks {
  // By Op::group of the rank's schedules; null: no such group, or it has one member.
  std::vector<collectives::Group*> groups = std::vector<collectives::Group*>(kGroups);
  std::vector<std::unique_ptr<collectives::Group>> owned;
};

// The timeout for joining the groups and, unless the job sets another, for each collective. The coordinator chooses it
// longer than its own hang detection, so it only ends ranks that the coordinator does not end.
absl::Duration CollectiveDeadline(const Assignment& assignment);
// Of a collective in a group of this kind: as the job sets it for the axes along which its members differ, the longest
// of several; that above for an axis of which the job says nothing.
absl::Duration CollectiveDeadline(const Assignment& assignment, const Mesh& mesh, const GroupSpec& group);

// A kind of group that ranks form, and what its members must agree on before their first collective (CollectivesDigest;
// empty: nothing, as the two ends of an edge).
struct GroupToJoin {
  GroupSpec spec;
  std::string digest;
  int32_t number = -1;  // Op::group of this rank's schedules; -1: it takes no part
};
// In an order that is the same on all ranks: the common groups in which collectives are issued (that of exchanges only
// if a unit exchanges, kContextTensorGroup never), then all edges of the pipeline.
std::vector<GroupToJoin> GroupsToJoin(const Inventory& inventory, const strategies::Layout& layout,
                                      const strategies::RankProgram& program);

// Waits for all other ranks; `rendezvous` outlives the groups.
// Unavailable: a rank did not join within CollectiveDeadline; the message names it. FailedPrecondition: this rank would
// issue other collectives than the first rank of a group; the message names both.
absl::StatusOr<Ranks> JoinRanks(const Assignment& assignment, const Mesh& mesh, const std::vector<GroupToJoin>& groups,
                                collectives::KeyValue& rendezvous);

}  // namespace muster::trainer
