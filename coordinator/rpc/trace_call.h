// Jobs.Trace: asks ranks to record their next steps and waits for their traces.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "coordinator/rpc/audited_call.h"
#include "coordinator/server/loop.h"
#include "proto/jobs.pb.h"

namespace muster::rpc {

// The caller may call the method; this call checks whether the job is its own. `loop` outlives the call.
grpc::ServerUnaryReactor* StartTrace(AuditedCall audited, const TraceRequest* request, TraceReply* reply,
                                     server::Loop* loop);

}  // namespace muster::rpc
