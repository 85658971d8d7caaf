#include "common/time_limit.h"

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr absl::Duration kShortestLimit = absl::Minutes(1);
constexpr absl::Duration kLongestLimit = absl::Hours(24 * 366);

}  // namespace

absl::StatusOr<absl::Duration> ParseTimeLimit(const std::string& text) {
  absl::Duration limit;
  if (!absl::ParseDuration(text, &limit)) {
    return absl::InvalidArgumentError(absl::StrCat("must be a duration such as 90m or 48h, got \"", text, "\""));
  }
  if (limit < kShortestLimit || limit > kLongestLimit) {
    return absl::InvalidArgumentError(absl::StrCat("must be ", absl::FormatDuration(kShortestLimit), " to ",
                                                   absl::FormatDuration(kLongestLimit), ", got ", text));
  }
  return limit;
}

}  // namespace muster
