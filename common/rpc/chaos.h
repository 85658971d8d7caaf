// A lossy network for tests: the channels of Dial lose calls and break streams. Off unless a test arms it, by the
// environment variable MUSTER_RPC_CHAOS, read at the first Dial, or by Arm:
//
//   MUSTER_RPC_CHAOS="requests=0.1,replies=0.1,streams=0.05,seed=7"
//
//   requests   share of unary calls whose request never reaches the server
//   replies    share of unary calls that run on the server, but whose reply is lost
//   streams    share of stream messages, in both directions, before which the stream breaks
//   seed       of the random choices; default: a different one in each process
//
// The caller sees UNAVAILABLE, as from a broken connection. Invalid text ends the process with a message, since a test
// that armed nothing would pass for no reason.
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

// Applies to channels that are dialed from now on. Replaces the armed shares and resets the counts; empty text disarms.
// InvalidArgument: what is wrong with the text.
absl::Status Arm(std::string_view text);

struct Count {
  uint64_t calls = 0;
  uint64_t requests_lost = 0;
  uint64_t replies_lost = 0;
  uint64_t streams_broken = 0;
};
// Counts by method, "/muster.v1.Jobs/Submit".
std::map<std::string, Count> Counts();

// The interceptors for a new channel; empty if nothing is armed.
std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> Interceptors();

}  // namespace muster::rpc::chaos
