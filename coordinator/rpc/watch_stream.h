#pragma once

#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
#include "coordinator/server/loop.h"
#include "proto/jobs.pb.h"

namespace muster::rpc {

// The stream of one Jobs.Watch; owns itself until it is done. It holds one page, and asks for the next when that page
// is written. Finishes with `admitted` if that is not OK.
grpc::ServerWriteReactor<WatchItem>* StartWatchStream(const absl::Status& admitted, const WatchRequest& request,
                                                      server::Loop* loop);

}  // namespace muster::rpc
