// Jobs.Checkpoint: requests a checkpoint of a running job and waits for its publication.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "coordinator/rpc/audited_call.h"
#include "coordinator/server/loop.h"
#include "proto/jobs.pb.h"

namespace muster::rpc {

// The caller may call the method; this call checks whether the job is its own. `loop` outlives the call.
grpc::ServerUnaryReactor* StartCheckpoint(AuditedCall audited, const CheckpointRequest* request, CheckpointReply* reply,
                                          server::Loop* loop);

}  // namespace muster::rpc
