// Agrees on one status across the ranks of a group.
#pragma once

#include "absl/status/status.h"
#include "proto/worker.pb.h"
#include "worker/collectives/group.h"

namespace muster::trainer {

// Every rank of `group` calls it at the same place; null: this rank is alone. Its own error, else, if another has one:
// `others`. Unavailable: one of them is lost.
absl::Status Agree(collectives::Group* group, Device device, const absl::Status& own, const absl::Status& others);

}  // namespace muster::trainer
