// The training loop of one rank.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/worker.pb.h"
#include "worker/collectives/key_value.h"
#include "worker/trainer/link.h"
#include "worker/trainer/setup.h"

namespace muster::trainer {

enum class Ended {
  kCompleted,  // all steps done; the last record is Finished
  kStopped,    // on request
};

// Sets up the rank and trains until the job is complete, the worker requests a stop, or `terminated` (polled before
// every step) returns true, which requests a stop with a checkpoint. A request to one rank stops all ranks after the
// same step. Records go to the outbox in `rank_dir`, and the link is notified of them. Any error ends the rank: the
// message says what failed, why, and where to look, and is the last record (Failed).
absl::StatusOr<Ended> TrainRank(const Assignment& assignment, const std::string& rank_dir, Link& link,
                                collectives::KeyValue& rendezvous, const std::function<bool()>& terminated,
                                const SetUpOptions& options = {});

}  // namespace muster::trainer
