#pragma once

#include <grpcpp/support/server_callback.h>

#include "absl/status/statusor.h"
#include "coordinator/rpc/authorize.h"
#include "coordinator/server/loop.h"
#include "proto/worker.pb.h"

namespace muster::rpc {

// The stream of one Workers.Connect; owns itself until it is done. It reads the next message when the loop has taken
// the previous one, and holds at most one unsent message of each kind and rank. Finishes with the status of `caller` if
// that is not OK, and with PermissionDenied if its Hello names another node than the caller's certificate.
grpc::ServerBidiReactor<WorkerMessage, CoordinatorMessage>* StartWorkerStream(const absl::StatusOr<Principal>& caller,
                                                                              server::Loop* loop);

}  // namespace muster::rpc
