// Small files that are there whole or not at all, whatever is killed or loses power.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::rundir {

// Writes beside `path`, fsyncs, renames over it, fsyncs the directory; mode 0600. ResourceExhausted: the disk is full;
// then what was at `path` before is still there.
absl::Status WriteDurably(const std::string& path, std::string_view content);

// From `offset` to the end; nothing when the file is not longer. NotFound: no such file.
absl::StatusOr<std::string> ReadWhole(const std::string& path, uint64_t offset = 0);

// Makes directory entries (creations, renames) of `directory` durable.
absl::Status SyncDirectory(const std::string& directory);

// A directory of mode 0700, durable in its parent. OK when it is there already.
absl::Status MakeDirectory(const std::string& path);

// Writes all bytes at the end of `fd`; `written` counts those that were, also when it fails.
absl::Status WriteFully(int fd, std::string_view bytes, size_t& written);

}  // namespace muster::rundir
