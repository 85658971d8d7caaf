// Jobs.Checkpoint: asks a running job for a checkpoint and waits until it is published.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "coordinator/rpc/authorize.h"
#include "coordinator/server/loop.h"
#include "proto/jobs.pb.h"

namespace muster::rpc {

// `caller` may call the method; whether the job is its own is found out here. `loop` outlives the call.
grpc::ServerUnaryReactor* StartCheckpoint(Principal caller, const CheckpointRequest* request, CheckpointReply* reply,
                                          server::Loop* loop);

}  // namespace muster::rpc
