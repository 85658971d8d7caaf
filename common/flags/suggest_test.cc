#include "common/flags/suggest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace muster {
namespace {

TEST(Nearest, FindsSlipsAndNothingElse) {
  const std::vector<std::string> keys = {"lr", "weight_decay", "clip_norm", "kind", "lr_schedule"};
  EXPECT_EQ(Nearest("lrr", keys), "lr");
  EXPECT_EQ(Nearest("rl", keys), "lr");
  EXPECT_EQ(Nearest("weight-decay", keys), "weight_decay");
  EXPECT_EQ(Nearest("weigth_decay", keys), "weight_decay");
  EXPECT_EQ(Nearest("Kind", keys), "kind");
  EXPECT_EQ(Nearest("zz", keys), "");
  EXPECT_EQ(Nearest("", keys), "");
  EXPECT_EQ(Nearest("learning", keys), "");
  EXPECT_EQ(Nearest(std::string(1 << 20, 'a'), keys), "");
}

TEST(EditDistance, IsTheRestrictedDamerauLevenshteinDistance) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("abc", ""), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("ab", "ba"), 1);
}

}  // namespace
}  // namespace muster
