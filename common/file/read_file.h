// Reading small files.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

// Reads a file to its end; pipes and files of /proc work, too. NotFound, PermissionDenied. InvalidArgument: it has more
// than `max_bytes`. Others as FileError.
absl::StatusOr<std::string> ReadWhole(const std::string& path,
                                      uint64_t max_bytes = std::numeric_limits<uint64_t>::max());

// Reads from `offset` to the end; empty if the file is not longer than that. Errors as ReadWhole.
absl::StatusOr<std::string> ReadFrom(const std::string& path, uint64_t offset);

// Reads a key or a token of at most 1 MiB. PermissionDenied: it belongs to another user, or other users may read it;
// the message says chmod 600. Pipes are not checked, because a shell's <(...) is one. Others as ReadWhole.
absl::StatusOr<std::string> ReadPrivateFile(const std::string& path);

}  // namespace muster
