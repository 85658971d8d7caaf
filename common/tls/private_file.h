// Files that only their owner may read: keys, tokens.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::tls {

// Writes atomically: beside `path`, fsynced, renamed over it, the folder fsynced. Creates the file with `mode`
// regardless of the umask; its mode is never wider on the way. Internal: the system's error.
absl::Status WritePrivateFile(const std::string& path, std::string_view content, unsigned mode = 0600);
// The same, but AlreadyExists if `path` exists.
absl::Status CreatePrivateFile(const std::string& path, std::string_view content);

// At most 1 MiB. NotFound. PermissionDenied: this user may not read it.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);
// PermissionDenied: it belongs to another user, or others may read it: chmod 600.
absl::StatusOr<std::string> ReadPrivateFile(const std::string& path);

// Creates a folder of mode 0700; OK if it exists and only this user may enter it. Otherwise PermissionDenied.
absl::Status MakePrivateFolder(const std::string& path);

}  // namespace muster::tls
