// Shared by calls that request something of running ranks and wait for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>

#include "absl/time/time.h"
#include "common/proto_time.h"

namespace muster::rpc {

// A random number, different each time, never 0.
inline uint64_t NewRequestNumber() {
  std::random_device source;  // /dev/urandom
  return uint64_t{source()} << 32 | source() | 1;
}

// How long a request waits, from its optional field `wait`: at most an hour.
template <typename Request>
absl::Duration WaitOf(const Request& request, absl::Duration usual) {
  if (!request.has_wait()) return usual;
  return std::min(absl::Hours(1), FromProto(request.wait()));
}

}  // namespace muster::rpc
