// A bad network for tests: the channels of Dial lose calls and break streams. Off unless a test arms it, by the
// environment variable MUSTER_RPC_CHAOS, read at the first Dial, or by Arm:
//
//   MUSTER_RPC_CHAOS="requests=0.1,replies=0.1,streams=0.05,seed=7"
//
//   requests   of the unary calls, what share does not reach the server
//   replies    what share of them is carried out there, and the answer is lost
//   streams    of the messages of streams, in both directions, before what share the stream breaks
//   seed       of the chances; without it each process has its own
//
// The caller sees UNAVAILABLE, as of a broken connection. A text that cannot be read ends the process with a message: a
// test that armed nothing would pass for no reason.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <grpcpp/support/client_interceptor.h>

#include "absl/status/status.h"

namespace muster::rpc::chaos {

// For the channels that are dialled from now on, in place of what was armed before, and counts from zero; empty: off.
// InvalidArgument: what is wrong with the text.
absl::Status Arm(std::string_view text);

struct Count {
  uint64_t calls = 0;
  uint64_t requests_lost = 0;
  uint64_t replies_lost = 0;
  uint64_t streams_broken = 0;
};
// By method, "/muster.v1.Jobs/Submit".
std::map<std::string, Count> Counts();

// What a new channel takes along; none when nothing is armed.
std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> Interceptors();

}  // namespace muster::rpc::chaos
