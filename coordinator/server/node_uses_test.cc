#include "coordinator/server/node_uses.h"

#include <gtest/gtest.h>

#include "common/proto_time.h"

namespace muster::server {
namespace {

NodeUse Busy(double cores) {
  NodeUse use;
  use.set_busy_cores(cores);
  return use;
}

TEST(NodeUses, KeepsAnHourTwoAMinuteAndTheNewest) {
  NodeUses uses;
  const NodeId a("a"), b("b");
  Now now{SteadyTime() + absl::Hours(1), absl::FromUnixSeconds(1000)};
  EXPECT_EQ(uses.Newest(a), nullptr);
  for (int i = 0; i < 7; ++i) {
    uses.Add(a, Busy(i), now);
    now.wall += absl::Seconds(10);
    now.steady = now.steady + absl::Seconds(10);
  }
  ASSERT_EQ(uses.LastHour(a, now.steady).size(), 3u) << "of 0, 30 and 60 s";
  EXPECT_EQ(uses.LastHour(a, now.steady)[1].busy_cores(), 3);
  EXPECT_EQ(FromProto(uses.LastHour(a, now.steady)[1].time()), absl::FromUnixSeconds(1030));
  EXPECT_EQ(uses.Newest(a)->busy_cores(), 6);
  EXPECT_TRUE(uses.LastHour(b, now.steady).empty());
  uses.Gone(a);
  EXPECT_EQ(uses.Newest(a), nullptr);
  EXPECT_EQ(uses.LastHour(a, now.steady).size(), 3u) << "what it was";
  now.steady = now.steady + (absl::Hours(1) - absl::Seconds(30));
  EXPECT_EQ(uses.LastHour(a, now.steady).size(), 1u);
  uses.Add(b, Busy(1), {now.steady + absl::Hours(1), now.wall});
  EXPECT_TRUE(uses.LastHour(a, now.steady).empty()) << "forgotten";
}

}  // namespace
}  // namespace muster::server
