#include "common/time_limit.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(TimeLimitText, Durations) {
  EXPECT_EQ(ParseTimeLimit("90m").value(), absl::Minutes(90));
  EXPECT_EQ(ParseTimeLimit("1h30m").value(), absl::Minutes(90));
  EXPECT_EQ(ParseTimeLimit("60s").value(), absl::Minutes(1));
  for (const char* bad : {"", "2", "2 days", "59s", "-2h", "inf", "8785h"}) {
    EXPECT_EQ(ParseTimeLimit(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace muster
