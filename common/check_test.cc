#include "common/check.h"

#include <gtest/gtest.h>

#include <string>

namespace muster {
namespace {

std::string Count(int* calls) {
  ++*calls;
  return "x";
}

TEST(Check, MakesNoMessageWhileTheConditionHolds) {
  int calls = 0;
  MUSTER_CHECK(calls == 0, "message ", Count(&calls));
  EXPECT_EQ(calls, 0);
}

TEST(CheckDeathTest, NamesThePlaceTheConditionAndTheObject) {
  const int rank = 3, world = 2;
  EXPECT_DEATH(MUSTER_CHECK(rank < world, "job ", "small-x7f2", " has no rank ", rank),
               "common/check_test.cc:[0-9]+: CHECK failed: rank < world: job small-x7f2 has no rank 3");
}

// It is one expression: an else belongs to the if that it follows.
TEST(Check, StandsWhereAStatementMay) {
  bool other = false;
  if (other)
    MUSTER_CHECK(other, "never");
  else
    other = true;
  EXPECT_TRUE(other);
}

}  // namespace
}  // namespace muster
