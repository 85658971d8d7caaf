// A position in the stream as clients see it: opaque, and checked, so that a typed or foreign one is refused.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace muster::server {

std::string CursorOf(uint64_t sequence);

// InvalidArgument: no coordinator made it.
absl::StatusOr<uint64_t> ParseCursor(const std::string& cursor);

}  // namespace muster::server
