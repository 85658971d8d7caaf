// Jobs.Trace: asks ranks to record their next steps and waits for what they tell.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "coordinator/rpc/authorize.h"
#include "coordinator/server/loop.h"
#include "proto/jobs.pb.h"

namespace muster::rpc {

// `caller` may call the method; whether the job is its own is found out here. `loop` outlives the call.
grpc::ServerUnaryReactor* StartTrace(Principal caller, const TraceRequest* request, TraceReply* reply,
                                     server::Loop* loop);

}  // namespace muster::rpc
