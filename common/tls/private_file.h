// Files that nobody else may read: keys, tokens.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::tls {

// Whole or not at all: beside `path`, fsynced, renamed over it, the folder fsynced. The file is made with `mode`
// whatever the umask says, and is never readable by more people on the way. Internal: the system's error.
absl::Status WritePrivateFile(const std::string& path, std::string_view content, unsigned mode = 0600);
// The same, but AlreadyExists when there is something at `path`.
absl::Status CreatePrivateFile(const std::string& path, std::string_view content);

// At most 1 MiB. NotFound. PermissionDenied: not ours to read.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);
// PermissionDenied: it belongs to somebody else, or others may read it: chmod 600.
absl::StatusOr<std::string> ReadPrivateFile(const std::string& path);

// A folder of mode 0700; OK when it is there and ours alone. PermissionDenied else.
absl::Status MakePrivateFolder(const std::string& path);

}  // namespace muster::tls
