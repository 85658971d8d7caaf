#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace muster {

// The Status of a failed file operation, "<what>: <cause>". Like absl::ErrnoToStatus, but says what to check next: no
// space, a quota or a size limit is ResourceExhausted, EIO is DataLoss. `error` is an errno.
absl::Status FileError(int error, std::string_view what);

}  // namespace muster
