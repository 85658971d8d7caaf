#pragma once

#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
#include "coordinator/server/loop.h"
#include "proto/worker.pb.h"

namespace muster::rpc {

// The stream of one Workers.Connect; owns itself until it is done. It reads a message when the loop has taken the one
// before, and holds at most one unsent message of each kind and rank. Ends at once with `admitted` if that is not OK.
grpc::ServerBidiReactor<WorkerMessage, CoordinatorMessage>* StartWorkerStream(const absl::Status& admitted,
                                                                              server::Loop* loop);

}  // namespace muster::rpc
