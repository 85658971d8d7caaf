#pragma once

#include <grpcpp/support/server_callback.h>

#include "absl/status/statusor.h"
#include "coordinator/rpc/authorize.h"
#include "coordinator/server/loop.h"
#include "proto/jobs.pb.h"

namespace muster::rpc {

// The stream of one Jobs.Watch; owns itself until it is done. It holds one page, and asks for the next when that page
// is written. Finishes with the error of `caller` if there is one, and when its token is revoked. `private_jobs`: it
// has nothing of jobs that the caller may not read, and about one such job it is refused.
grpc::ServerWriteReactor<WatchItem>* StartWatchStream(const absl::StatusOr<Principal>& caller,
                                                      const WatchRequest& request, bool private_jobs,
                                                      server::Loop* loop);

}  // namespace muster::rpc
