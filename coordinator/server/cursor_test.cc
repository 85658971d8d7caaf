#include "coordinator/server/cursor.h"

#include <gtest/gtest.h>

namespace muster::server {
namespace {

TEST(Cursor, RoundTrips) {
  for (const uint64_t sequence : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40, ~uint64_t{0}}) {
    EXPECT_EQ(ParseCursor(CursorOf(sequence)).value(), sequence);
  }
}

TEST(Cursor, RefusesEveryChangedCharacterAndGarbage) {
  const std::string cursor = CursorOf(123456);
  for (size_t i = 0; i < cursor.size(); ++i) {
    std::string changed = cursor;
    changed[i] = changed[i] == '1' ? '2' : '1';
    EXPECT_EQ(ParseCursor(changed).status().code(), absl::StatusCode::kInvalidArgument) << changed;
  }
  for (const char* garbage : {"", "7", "c1-", "c1-000000000000000000000000000", "\xff\xfe"}) {
    EXPECT_FALSE(ParseCursor(garbage).ok()) << garbage;
  }
}

}  // namespace
}  // namespace muster::server
