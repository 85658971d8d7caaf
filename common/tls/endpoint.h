// host:port, and whether other machines can reach it. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace muster::tls {

struct Endpoint {
  std::string host;  // without brackets
  std::string port;
};

// "127.0.0.1:7070", "gpu-head:7070", "[::1]:7070". InvalidArgument: neither, or a port over 65535.
absl::StatusOr<Endpoint> ParseEndpoint(const std::string& text);

// Whether it is a loopback address of this machine or the name localhost. Other names are not resolved: they count as
// beyond this machine.
bool IsLoopback(const std::string& host);

}  // namespace muster::tls
