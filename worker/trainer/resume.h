// From where a generation goes on.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/worker.pb.h"
#include "worker/collectives/group.h"
#include "worker/engine/engine.h"

namespace muster::trainer {

struct Resumed {
  uint64_t step = 0;
  uint64_t samples_consumed = 0;
};

// Loads assignment.resume_from, or, if that is damaged, the newest older published one that is whole, and says so
// loudly. Each rank reads what it owns and verifies what it reads, so that together they read a checkpoint once for
// every replica; what one of them finds damaged none uses. Every rank of `world` calls it (null: there is only this).
// DataLoss: none is whole. FailedPrecondition: it belongs to another job, model or optimizer, for this rank or another.
absl::StatusOr<Resumed> Resume(const Assignment& assignment, collectives::Group* world, engine::Engine& engine);

}  // namespace muster::trainer
