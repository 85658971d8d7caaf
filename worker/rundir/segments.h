// Numbered files of one kind in a folder: "<prefix>.NNNNNN".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rundir {

inline constexpr char kLogPrefix[] = "log";  // of a log's segments

std::string SegmentPath(const std::string& directory, std::string_view prefix, uint64_t index);

// Ascending; empty when there are none or the folder is gone.
std::vector<uint64_t> ListSegments(const std::string& directory, std::string_view prefix);

}  // namespace muster::rundir
