#include "coordinator/web/thin.h"

#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"

namespace muster::web {
namespace {

MetricPoint Point(uint64_t step, double loss) {
  MetricPoint point;
  point.set_step(step);
  point.mutable_time()->set_seconds(static_cast<int64_t>(1000 + step));
  point.set_loss(loss);
  return point;
}

TEST(SeriesThinner, KeepsEveryPointWhileTheyFit) {
  SeriesThinner thin(4);
  for (uint64_t step = 1; step <= 3; ++step) thin.Add(Point(step, 10.0 - static_cast<double>(step)));
  EXPECT_EQ(thin.Json(),
            "{\"width\":1,\"points\":3,\"steps\":[1,2,3],\"times\":[1001.000000,1002.000000,1003.000000],\"series\":"
            "{\"loss\":{\"min\":[9,8,7],\"max\":[9,8,7],\"last\":[9,8,7]}}}");
}

// Steps 1 to 5 in at most two bins of four steps: losses 3 9 1 5 | 2.
TEST(SeriesThinner, ABinHasTheLowestTheHighestAndTheLastValue) {
  SeriesThinner thin(2);
  const double losses[] = {3, 9, 1, 5, 2};
  for (uint64_t step = 1; step <= 5; ++step) thin.Add(Point(step, losses[step - 1]));
  const std::vector<SeriesThinner::Bin> bins = thin.bins();
  ASSERT_EQ(bins.size(), 2u);
  EXPECT_EQ(thin.width(), 4u);
  EXPECT_EQ(bins[0].first_step, 1u);
  EXPECT_EQ(bins[0].last_step, 4u);
  EXPECT_EQ(bins[0].values.at("loss"), (SeriesThinner::Value{1, 9, 5}));
  EXPECT_EQ(bins[1].values.at("loss"), (SeriesThinner::Value{2, 2, 2}));
}

TEST(SeriesThinner, AStepThatIsComputedAgainCountsOnce) {
  SeriesThinner thin(10);
  for (const uint64_t step : {1, 2, 3, 2, 3, 4}) thin.Add(Point(step, static_cast<double>(step)));
  thin.Add(Point(4, 40));
  const std::vector<SeriesThinner::Bin> bins = thin.bins();
  ASSERT_EQ(bins.size(), 4u);
  EXPECT_EQ(bins[3].values.at("loss"), (SeriesThinner::Value{40, 40, 40}));
}

TEST(SeriesThinner, StaysWithinItsBoundAndLosesNoSpike) {
  SeriesThinner thin(100);
  for (uint64_t step = 1; step <= 100'000; ++step) thin.Add(Point(step, step == 77'777 ? 1e6 : 1.0));
  const std::vector<SeriesThinner::Bin> bins = thin.bins();
  EXPECT_LE(bins.size(), 100u);
  EXPECT_GE(bins.size(), 50u);
  int spikes = 0;
  for (const SeriesThinner::Bin& bin : bins) spikes += bin.values.at("loss").max == 1e6 ? 1 : 0;
  EXPECT_EQ(spikes, 1);
  EXPECT_EQ(bins.back().last_step, 100'000u);
}

TEST(SeriesThinner, HasWhatAScriptReportsUnderItsOwnNamesUpToABound) {
  SeriesThinner thin(10);
  MetricPoint point = Point(1, 2);
  NamedMetric* const reward = point.add_reported();
  reward->set_name("eval/Reward-1"), reward->set_value(0.5);
  thin.Add(point);
  EXPECT_NE(thin.Json().find(R"("reported.eval/Reward-1":{"min":[0.5],"max":[0.5],"last":[0.5]})"), std::string::npos)
      << thin.Json();
  for (uint64_t step = 2; step <= 1000; ++step) {
    MetricPoint other = Point(step, 1);
    other.add_reported()->set_name(absl::StrCat("name", step));
    thin.Add(other);
  }
  const std::string json = thin.Json();
  size_t series = 0;
  for (size_t at = 0; (at = json.find("\"min\"", at)) != std::string::npos; ++at) ++series;
  EXPECT_EQ(series, 256u);
}

TEST(SeriesThinner, NumbersThatAreNoneAreTextAndDoNotHideTheOthers) {
  SeriesThinner thin(2);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  thin.Add(Point(1, 2));
  thin.Add(Point(2, nan));
  EXPECT_NE(thin.Json().find("\"last\":[2,\"NaN\"]"), std::string::npos) << thin.Json();
  thin.Add(Point(3, 4));  // now (1, 2) and (3) share bins of two steps
  EXPECT_EQ(thin.bins()[0].values.at("loss").max, 2);
}

}  // namespace
}  // namespace muster::web
