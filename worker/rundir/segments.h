// Numbered files of one kind in a folder: "<prefix>.NNNNNN".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::rundir {

inline constexpr char kLogPrefix[] = "log";  // of a log's segments

std::string SegmentPath(const std::string& directory, std::string_view prefix, uint64_t index);

// Ascending; empty when there are none or the folder is gone. Looks at 16,384 entries of the folder, no more: the rank
// may fill it.
std::vector<uint64_t> ListSegments(const std::string& directory, std::string_view prefix);

// Opens a file that the trainer wrote, who may be another user than this process: a descriptor to read from. NotFound.
// DataLoss: something else has that name, such as a symbolic link or a pipe.
absl::StatusOr<int> OpenTrainersFile(const std::string& path);
// Reads such a file from `offset` to its end. Also DataLoss: it has more than `max_bytes`.
absl::StatusOr<std::string> ReadTrainersFile(const std::string& path, uint64_t offset, uint64_t max_bytes);

}  // namespace muster::rundir
