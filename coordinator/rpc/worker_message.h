#pragma once

#include "absl/status/status.h"
#include "proto/worker.pb.h"

namespace muster::rpc {

// Whether a worker's message has the form that proto/worker.proto promises; `first`: of its stream. Shortens what may
// be long in it (last lines, messages), so that no row outgrows the store. InvalidArgument: malformed;
// FailedPrecondition: a Hello of a version that does not fit.
absl::Status CheckWorkerMessage(bool first, WorkerMessage& message);

}  // namespace muster::rpc
