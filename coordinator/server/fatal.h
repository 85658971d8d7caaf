#pragma once

#include "absl/status/status.h"

namespace muster::server {

// Ends the process after an error that leaves the state of the disk unknown: logs what failed and aborts. The next
// start recovers from the disk.
[[noreturn]] void EndProcess(const char* what, const absl::Status& status);

}  // namespace muster::server
