// The text of a job's time_limit.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace muster {

// "90m", "1h30m". InvalidArgument, without the field's name: no duration, or not a minute to a year.
absl::StatusOr<absl::Duration> ParseTimeLimit(const std::string& text);

}  // namespace muster
