// A position in the stream in the form that clients see: opaque, with a checksum that rejects mistyped cursors.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace muster::server {

std::string CursorOf(uint64_t sequence);

// InvalidArgument: not a cursor that a coordinator has issued.
absl::StatusOr<uint64_t> ParseCursor(const std::string& cursor);

}  // namespace muster::server
