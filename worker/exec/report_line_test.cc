#include "worker/exec/report_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"

namespace muster::exec {
namespace {

using ::testing::HasSubstr;

MetricPoint PointOf(const std::string& line) {
  const absl::StatusOr<Report> report = ParseReport(line);
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() && std::holds_alternative<MetricPoint>(*report) ? std::get<MetricPoint>(*report) : MetricPoint();
}

TEST(ReportLine, KnownNamesHaveTheirFields) {
  const MetricPoint point = PointOf(
      R"({"step": 10, "loss": 2.5, "lr": 1e-3, "grad_norm": 0.5, "val_loss": 3, "step_seconds": 0.25,)"
      R"( "tokens_per_second": 1000, "samples_per_second": 8, "train/accuracy": 0.75, "note": "x", "list": [1]})");
  EXPECT_EQ(point.step(), 10u);
  EXPECT_EQ(point.loss(), 2.5);
  EXPECT_EQ(point.learning_rate(), 1e-3);
  EXPECT_EQ(point.gradient_norm(), 0.5);
  EXPECT_EQ(point.validation_loss(), 3);
  EXPECT_EQ(point.step_seconds(), 0.25);
  EXPECT_EQ(point.tokens_per_second(), 1000);
  EXPECT_EQ(point.samples_per_second(), 8);
  ASSERT_EQ(point.reported_size(), 1) << "no text and no lists";
  EXPECT_EQ(point.reported(0).name(), "train/accuracy");
  EXPECT_EQ(point.reported(0).value(), 0.75);
}

// JSON has no NaN, and a loss that is NaN is what one wants to see.
TEST(ReportLine, NumbersThatJsonLacksAreText) {
  EXPECT_TRUE(std::isnan(PointOf(R"({"step": 1, "loss": "nan"})").loss()));
  EXPECT_EQ(PointOf(R"({"step": 1, "loss": "-inf"})").loss(), -INFINITY);
  EXPECT_FALSE(PointOf(R"({"step": 1, "loss": "low"})").has_loss());
}

TEST(ReportLine, StepsMayBeWholeFloats) {
  EXPECT_EQ(PointOf(R"({"step": 3.0})").step(), 3u);
  EXPECT_EQ(PointOf(R"({"step": 1e12})").step(), kMaxReportedStep);
}

TEST(ReportLine, ACheckpointIsAPathAndAStep) {
  const absl::StatusOr<Report> report = ParseReport(R"({"checkpoint": "runs/step-10", "step": 10})");
  ASSERT_TRUE(report.ok()) << report.status();
  const CheckpointWritten& written = std::get<CheckpointWritten>(*report);
  EXPECT_EQ(written.directory(), "runs/step-10");
  EXPECT_EQ(written.step(), 10u);
}

// A coordinator takes no longer one.
TEST(ReportLine, ACheckpointsPathHasAtMost256Bytes) {
  const auto with = [](size_t bytes) {
    return ParseReport(absl::StrCat(R"({"step": 1, "checkpoint": ")", std::string(bytes, 'x'), "\"}")).status();
  };
  EXPECT_TRUE(with(256).ok()) << with(256);
  EXPECT_THAT(std::string(with(257).message()), HasSubstr("\"checkpoint\" must be a path of 1 to 256 bytes"));
}

TEST(ReportLine, RefusesTheRest) {
  const auto why = [](const std::string& line) { return std::string(ParseReport(line).status().message()); };
  EXPECT_THAT(why("hello"), HasSubstr("not a JSON object"));
  EXPECT_THAT(why("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(why(std::string(10'000, '[')), HasSubstr("not a JSON object"));
  EXPECT_THAT(why(R"({"loss": 1})"), HasSubstr("no number \"step\""));
  EXPECT_THAT(why(R"({"step": "1"})"), HasSubstr("no number \"step\""));
  for (const char* step : {"-1", "0.5", "1e13", "1e400"}) {
    EXPECT_NE(why(absl::StrCat("{\"step\": ", step, "}")), "") << step;
  }
  EXPECT_THAT(why(R"({"step": 1, "checkpoint": ""})"), HasSubstr("\"checkpoint\" must be a path"));
  EXPECT_THAT(why(R"({"step": 1, "checkpoint": 5})"), HasSubstr("\"checkpoint\" must be a path"));
  EXPECT_THAT(why(std::string(kMaxReportLine + 1, ' ')), HasSubstr("more than 16384 bytes"));
  std::string many = R"({"step": 1)";
  for (int i = 0; i <= kMaxReportedMetrics; ++i) absl::StrAppend(&many, ", \"m", i, "\": 1");
  EXPECT_THAT(why(many + "}"), HasSubstr("more than 64 metrics"));
}

}  // namespace
}  // namespace muster::exec
