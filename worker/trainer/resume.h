// From where a generation goes on.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/worker.pb.h"
#include "worker/collectives/group.h"
#include "worker/collectives/key_value.h"
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

// Likewise from another job's: the spec's checkpoint.resume_from, a step's folder or one of such, of which rank 0 takes
// the newest for all, and, where that is damaged, the next. Whatever strategy and number of ranks wrote it.
// NotFound: nothing is there. FailedPrecondition: it is of another model, optimizer, seed or order of data, or has all
// the steps that this job is to do.
absl::StatusOr<Resumed> ResumeOther(const Assignment& assignment, collectives::Group* world,
                                    collectives::KeyValue& rendezvous, engine::Engine& engine);

}  // namespace muster::trainer
