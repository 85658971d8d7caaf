// What a rank does in place of training when its job measures collectives (Train.bench).
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "proto/worker.pb.h"
#include "worker/collectives/key_value.h"
#include "worker/rundir/outbox.h"
#include "worker/trainer/link.h"
#include "worker/trainer/loop.h"
#include "worker/trainer/pulse.h"

namespace muster::trainer {

// Joins the groups that it would train with and times each collective in each mode at each size among all ranks. Rank 0
// reports each as a step's metrics. After a call that took longer than longest_seconds, the larger sizes of that
// collective and mode are left out, and so are modes that a collective or these ranks do not have. A request to one
// rank stops all ranks after the same measurement. Errors as SetUp's up to the joining of groups, and as
// collectives::TimeCollective.
absl::StatusOr<Ended> RunCollectiveBench(const Assignment& assignment, collectives::KeyValue& rendezvous,
                                         rundir::OutboxWriter& outbox, Pulse& pulse, Link& link,
                                         const std::function<bool()>& terminated);

}  // namespace muster::trainer
