#pragma once

#include <grpcpp/support/server_callback.h>

#include "absl/status/statusor.h"
#include "coordinator/rpc/authorize.h"
#include "coordinator/server/loop.h"
#include "proto/worker.pb.h"

namespace muster::rpc {

// One Workers.FetchTable; owns itself until it is done. Finishes with the status of `caller` if that is not OK.
grpc::ServerWriteReactor<TableChunk>* StartTableCall(const absl::StatusOr<Principal>& caller,
                                                     const FetchTableRequest& request, server::Loop* loop);

}  // namespace muster::rpc
