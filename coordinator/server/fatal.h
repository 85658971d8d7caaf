#pragma once

#include "absl/status/status.h"

namespace muster::server {

// Ends the process after an error that leaves the state of the disk unknown: logs what failed and aborts. The next
// start recovers from the disk.
[[noreturn]] void EndProcess(const char* what, const absl::Status& status);

// Likewise where the store is fine, but clients and workers cannot connect: `status` says to which address and why. The
// next start listens anew.
[[noreturn]] void EndUnreachable(const absl::Status& status);

}  // namespace muster::server
