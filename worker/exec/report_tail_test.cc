#include "worker/exec/report_tail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "testing/temporary_folder.h"

namespace muster::exec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ReportTailTest : public ::testing::Test {
 protected:
  ReportTailTest() : tail_(Path(), /*per_second=*/10, /*burst=*/20) { EXPECT_TRUE(tail_.Create().ok()); }

  std::string Path() const { return folder_.path() + "/report"; }
  void Write(const std::string& text) { std::ofstream(Path(), std::ios::app | std::ios::binary) << text; }
  std::vector<uint64_t> Steps() {
    std::vector<uint64_t> steps;
    for (const Report& report : tail_.Read(clock_.Read().steady)) {
      steps.push_back(std::get<MetricPoint>(report).step());
    }
    return steps;
  }
  static std::string Line(int step) { return absl::StrCat("{\"step\": ", step, "}\n"); }

  TemporaryFolder folder_;
  FakeClock clock_;
  ReportTail tail_;
};

TEST_F(ReportTailTest, ReadsWholeLinesOnce) {
  EXPECT_THAT(Steps(), IsEmpty());
  Write(Line(1) + "{\"st");
  EXPECT_THAT(Steps(), ElementsAre(1));
  Write("ep\": 2}\n\n" + Line(3));
  EXPECT_THAT(Steps(), ElementsAre(2, 3));
  EXPECT_THAT(Steps(), IsEmpty());
  EXPECT_EQ(tail_.TakeWarning(), "");
}

TEST_F(ReportTailTest, MalformedLinesAreOneWarning) {
  Write("first\nsecond\n" + std::string(kMaxReportLine + 10, 'x'));
  EXPECT_THAT(Steps(), IsEmpty());
  EXPECT_THAT(tail_.TakeWarning(), HasSubstr("not a JSON object"));
  Write(std::string(3 * kMaxReportLine, 'x') + "{\"step\": 8}\n" + Line(9));
  EXPECT_THAT(Steps(), ElementsAre(9)) << "the end of a long line is no line";
  EXPECT_EQ(tail_.TakeWarning(), "");
}

TEST_F(ReportTailTest, ReportsHaveARate) {
  for (int step = 1; step <= 30; ++step) Write(Line(step));
  EXPECT_EQ(Steps().size(), 20u) << "the burst";
  EXPECT_THAT(tail_.TakeWarning(), HasSubstr("more than 10 times a second"));
  clock_.Advance(absl::Milliseconds(500));
  for (int step = 31; step <= 60; ++step) Write(Line(step));
  EXPECT_THAT(Steps(), ElementsAre(31, 32, 33, 34, 35));
  EXPECT_EQ(tail_.TakeWarning(), "");
}

TEST_F(ReportTailTest, AFileThatIsCutBeginsAnew) {
  Write(Line(1) + Line(2));
  EXPECT_THAT(Steps(), ElementsAre(1, 2));
  std::ofstream(Path(), std::ios::trunc) << Line(3);
  EXPECT_THAT(Steps(), IsEmpty());
  EXPECT_THAT(Steps(), ElementsAre(3));
}

TEST_F(ReportTailTest, WhatIsReadTakesNoDisk) {
  for (int i = 0; i < 12; ++i) Write(std::string(1 << 20, '\n'));
  for (int i = 0; i < 12; ++i) EXPECT_THAT(Steps(), IsEmpty());
  struct stat found {};
  ASSERT_EQ(stat(Path().c_str(), &found), 0);
  EXPECT_EQ(found.st_size, 12 << 20);
  EXPECT_LT(found.st_blocks * 512, 6 << 20);
}

}  // namespace
}  // namespace muster::exec
