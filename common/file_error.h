#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace muster {

// A failed file operation as a Status, "<what>: <cause>". As absl::ErrnoToStatus, but with what to look at next: no
// space, a quota or a size limit is ResourceExhausted, EIO is DataLoss. `error` is an errno.
absl::Status FileError(int error, std::string_view what);

}  // namespace muster
