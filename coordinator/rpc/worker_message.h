#pragma once

#include "absl/status/status.h"
#include "proto/worker.pb.h"

namespace muster::rpc {

// Checks that a worker's message has the form that proto/worker.proto requires; `first`: the first of its stream.
// Truncates long texts (last lines, messages), so that no row outgrows the store. InvalidArgument: malformed.
// FailedPrecondition: a Hello whose version does not match.
absl::Status CheckWorkerMessage(bool first, WorkerMessage& message);

}  // namespace muster::rpc
