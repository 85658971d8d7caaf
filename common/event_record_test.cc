#include "common/event_record.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

// The first header of a file that torch.utils.tensorboard wrote.
constexpr unsigned char kHeader[] = {0x48, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0x92, 0x48, 0x9d};

TEST(EventRecord, HeadersAndTrailersAreChecked) {
  const std::string header(reinterpret_cast<const char*>(kHeader), sizeof kHeader);
  EXPECT_EQ(EventLength(header), 0x48u);
  EXPECT_EQ(EventRecord(std::string(0x48, 'x')).substr(0, kEventHeaderBytes), header);
  for (size_t i = 0; i < header.size(); ++i) {
    std::string damaged = header;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    EXPECT_FALSE(EventLength(damaged).has_value()) << i;
  }
  const std::string record = EventRecord("event");
  ASSERT_EQ(record.size(), kEventHeaderBytes + 5 + kEventTrailerBytes);
  EXPECT_TRUE(IsTrailerOf(record.substr(record.size() - kEventTrailerBytes), "event"));
  EXPECT_FALSE(IsTrailerOf(record.substr(record.size() - kEventTrailerBytes), "Event"));
}

}  // namespace
}  // namespace muster
