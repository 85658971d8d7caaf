#pragma once

#include "absl/status/status.h"

namespace muster::server {

// For errors after which nothing may be assumed about what is on disk: logs what failed and aborts. The next start
// recovers from the disk.
[[noreturn]] void EndProcess(const char* what, const absl::Status& status);

}  // namespace muster::server
