#include "coordinator/store/thin.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace muster::store {
namespace {

std::vector<ThinPoint> Window(const std::vector<double>& losses) {
  std::vector<ThinPoint> window;
  for (size_t i = 0; i < losses.size(); ++i) window.push_back({i + 1, losses[i], std::nullopt});
  return window;
}

TEST(Thin, KeepsExtremesOfEachBucketAndBothEnds) {
  //                                         | bucket    | bucket    | rest
  const std::vector<bool> kept = Thin(Window({5, 9, 1, 5, 5, 2, 3, 4, 7, 7}));
  EXPECT_EQ(kept, (std::vector<bool>{true, true, true, false, true, true, false, false, true, true}));
}

TEST(Thin, EqualLossesHalve) {
  const std::vector<bool> kept = Thin(Window(std::vector<double>(400, 1.0)));
  EXPECT_EQ(std::count(kept.begin(), kept.end(), true), 201);
}

TEST(Thin, RareValidationLossStaysDenseOneIsThinned) {
  std::vector<ThinPoint> window = Window(std::vector<double>(400, 1.0));
  for (size_t i = 0; i < window.size(); i += 10) window[i].validation_loss = 2.0;
  std::vector<bool> kept = Thin(window);
  for (size_t i = 0; i < window.size(); i += 10) EXPECT_TRUE(kept[i]) << i;
  for (ThinPoint& point : window) point.validation_loss = 2.0;
  kept = Thin(window);
  EXPECT_LE(std::count(kept.begin(), kept.end(), true), 201);
}

TEST(Thin, EmptyAndTinyWindows) {
  EXPECT_TRUE(Thin({}).empty());
  EXPECT_EQ(Thin(Window({1})), std::vector<bool>{true});
  EXPECT_EQ(Thin(Window({1, 2, 3})), std::vector<bool>(3, true));
}

TEST(Thin, RandomWindowsKeepGlobalExtremesAndShrink) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> losses(4 + random() % 300);
    for (double& loss : losses) loss = static_cast<double>(random() % 1000);
    const std::vector<bool> kept = Thin(Window(losses));
    double low = 1e9, high = -1e9;
    for (size_t i = 0; i < losses.size(); ++i) {
      if (!kept[i]) continue;
      low = std::min(low, losses[i]);
      high = std::max(high, losses[i]);
    }
    EXPECT_EQ(low, *std::min_element(losses.begin(), losses.end()));
    EXPECT_EQ(high, *std::max_element(losses.begin(), losses.end()));
    EXPECT_LE(static_cast<size_t>(std::count(kept.begin(), kept.end(), true)), losses.size() / 2 + 4);
  }
}

}  // namespace
}  // namespace muster::store
