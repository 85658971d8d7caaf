// Atomic, durable writes of small files: after a kill or power loss a file is complete or unchanged.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::rundir {

// Writes a temporary file, fsyncs it, renames it to `path` and fsyncs the directory; mode 0600. ResourceExhausted: the
// disk is full; the previous content of `path` is intact.
absl::Status WriteDurably(const std::string& path, std::string_view content);

// Reads from `offset` to the end; empty if the file is not longer. NotFound: no such file.
absl::StatusOr<std::string> ReadWhole(const std::string& path, uint64_t offset = 0);

// Makes creations and renames in `directory` durable.
absl::Status SyncDirectory(const std::string& directory);

// Creates a directory of mode 0700, durable in its parent. OK if it exists.
absl::Status MakeDirectory(const std::string& path);

// Appends all bytes to `fd`; `written` counts the bytes written, also on failure.
absl::Status WriteFully(int fd, std::string_view bytes, size_t& written);

}  // namespace muster::rundir
