// Finds the address at which other machines reach this one.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace muster::agent {

// The address from which this machine reaches `coordinator` ("unix:/path" or "HOST:PORT"), by the kernel's routes;
// nothing is sent. A Unix socket's is 127.0.0.1. Unavailable: HOST has no address, or no route leads to it.
absl::StatusOr<std::string> LocalAddressTowards(const std::string& coordinator);

}  // namespace muster::agent
