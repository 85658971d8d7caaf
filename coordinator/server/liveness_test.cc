#include "coordinator/server/liveness.h"

#include <gtest/gtest.h>

#include <string>

namespace muster::server {
namespace {

SteadyTime At(double seconds) { return SteadyTime() + absl::Seconds(seconds); }

std::string SilentAt(Liveness& liveness, double seconds) {
  std::string names;
  for (const Liveness::Silent& silent : liveness.Check(At(seconds))) {
    names += silent.node.value() + " " + absl::FormatDuration(silent.time) + ";";
  }
  return names;
}

TEST(Liveness, ANodeIsSilentAfterTheLimit) {
  Liveness liveness(absl::Seconds(10));
  liveness.Contact(NodeId("a"), At(0));
  liveness.Contact(NodeId("b"), At(4));
  EXPECT_EQ(SilentAt(liveness, 5), "");
  EXPECT_EQ(SilentAt(liveness, 10), "") << "not before it is over";
  EXPECT_EQ(SilentAt(liveness, 12), "a 12s;");
  liveness.Forget(NodeId("a"));
  EXPECT_EQ(SilentAt(liveness, 14), "");
  EXPECT_EQ(SilentAt(liveness, 15), "b 11s;");
}

// The coordinator was frozen for a minute, and reads what came meanwhile only now.
TEST(Liveness, TimeThatThisProcessMissedDoesNotCount) {
  Liveness liveness(absl::Seconds(10));
  liveness.Contact(NodeId("a"), At(0));
  EXPECT_EQ(SilentAt(liveness, 1), "");
  EXPECT_EQ(SilentAt(liveness, 61), "") << "55 of these 60 seconds do not count";
  EXPECT_EQ(SilentAt(liveness, 65), "");
  EXPECT_EQ(SilentAt(liveness, 66), "a 11s;");
}

}  // namespace
}  // namespace muster::server
