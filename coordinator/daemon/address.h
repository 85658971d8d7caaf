// The addresses that the coordinator listens on.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::server {

struct Address {
  std::string text;         // "unix:/path" or "host:port", in gRPC's form
  std::string socket_path;  // path of a Unix socket; empty: TCP
  bool is_local = false;    // only processes on this machine can reach it
};

// InvalidArgument: neither "unix:/absolute/path" of at most 107 bytes nor "host:port".
absl::StatusOr<Address> ParseAddress(const std::string& text);

}  // namespace muster::server
