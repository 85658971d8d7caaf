// The training loop of one rank.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/worker.pb.h"
#include "worker/collectives/key_value.h"
#include "worker/trainer/link.h"

namespace muster::trainer {

enum class Ended {
  kCompleted,  // all steps done; the last record is Finished
  kStopped,    // as told
};

// What the job names is wrong, so that no other attempt can do better: said of errors before the first step.
bool IsRefusal(const absl::Status& status);

// Sets the rank up and trains to the end of its job, until the worker says stop, or until `terminated` (asked before
// every step) says that the process was told to end, which means a stop with a checkpoint. With several ranks all stop
// after the same step, when one of them was told. Records go to the outbox in `rank_dir`; the link hears of them. Any
// error ends the rank: the message says what failed, why, and where to look, and is the last record (Failed).
absl::StatusOr<Ended> TrainRank(const Assignment& assignment, const std::string& rank_dir, Link& link,
                                collectives::KeyValue& rendezvous, const std::function<bool()>& terminated);

}  // namespace muster::trainer
