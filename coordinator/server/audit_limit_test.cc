#include "coordinator/server/audit_limit.h"

#include <gtest/gtest.h>

namespace muster::server {
namespace {

TEST(AuditLimit, WhoChangesNothingOverAndOverIsCounted) {
  AuditLimit limit;
  SteadyTime now{};
  for (int i = 0; i < 60; ++i) EXPECT_EQ(limit.Admit("eve", false, now), 0u) << i;
  for (int i = 0; i < 7; ++i) EXPECT_EQ(limit.Admit("eve", false, now), std::nullopt) << i;
  EXPECT_EQ(limit.Admit("ann", false, now), 0u) << "others are not counted with her";
  EXPECT_EQ(limit.Admit("eve", true, now), 7u) << "changes always have an entry";
  EXPECT_EQ(limit.Admit("eve", true, now), 0u);
  EXPECT_EQ(limit.Admit("eve", false, now), std::nullopt);
  now = now + absl::Minutes(1);
  EXPECT_EQ(limit.Admit("eve", false, now), 1u) << "a minute later there is room again";
  EXPECT_EQ(limit.Admit("eve", false, now), 0u);
}

}  // namespace
}  // namespace muster::server
