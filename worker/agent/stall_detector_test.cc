#include "worker/agent/stall_detector.h"

#include <gtest/gtest.h>

#include "testing/temporary_folder.h"

namespace muster::agent {
namespace {

using absl::Milliseconds;
using absl::Seconds;

class StallDetectorTest : public testing::Test {
 protected:
  void Create() { page_ = rundir::ProgressPage::Create(folder_.path()).value(); }
  rundir::Progress& page() { return *page_->operator->(); }
  // Looks as often as the daemon does.
  void Pass(absl::Duration duration, absl::Duration each = Milliseconds(200)) {
    for (; duration > absl::ZeroDuration(); duration -= each) {
      now_ = now_ + each;
      stall_detector_.Look(now_);
    }
  }

  TemporaryFolder folder_;
  std::unique_ptr<rundir::ProgressPage> page_;
  StallDetector stall_detector_{folder_.path()};
  SteadyTime now_ = SteadyTime::FromNanoseconds(1'000'000'000'000);
};

TEST_F(StallDetectorTest, WithoutAPageNothingIsReported) {
  Pass(Seconds(10));
  EXPECT_FALSE(stall_detector_.stall().has_value());
  Create();
  Pass(Milliseconds(400));
  EXPECT_FALSE(stall_detector_.stall().has_value()) << "the time before the page says nothing";
}

TEST_F(StallDetectorTest, AStallIsReportedFromASecondOnUntilProgress) {
  Create();
  page().step = 7;
  page().op_issued = 5;
  page().op_completed = 3;
  page().op_exchanges = 3;
  Pass(Seconds(1));
  EXPECT_FALSE(stall_detector_.stall().has_value()) << "the first look only begins";
  Pass(Milliseconds(200));
  ASSERT_TRUE(stall_detector_.stall().has_value());
  EXPECT_EQ(stall_detector_.stall()->duration, Seconds(1));
  EXPECT_EQ(stall_detector_.stall()->step, 7u);
  EXPECT_EQ(stall_detector_.stall()->op_issued, 5u);
  EXPECT_EQ(stall_detector_.stall()->op_completed, 3u);
  EXPECT_EQ(stall_detector_.stall()->op_exchanges, 2u);
  Pass(Seconds(59));
  EXPECT_EQ(stall_detector_.stall()->duration, Seconds(60));
  page().op_completed = 4;
  Pass(Milliseconds(200));
  EXPECT_FALSE(stall_detector_.stall().has_value());
}

TEST_F(StallDetectorTest, ABuildThatDoesNotCountExchangesIsNotOneThatHasBegunNone) {
  Create();
  page().op_issued = 5;
  Pass(Seconds(2));
  EXPECT_EQ(stall_detector_.stall()->op_exchanges, std::nullopt);
  page().op_exchanges = 1;
  Pass(Seconds(2));
  EXPECT_EQ(stall_detector_.stall()->op_exchanges, 0u);
}

TEST_F(StallDetectorTest, EachFieldIsProgress) {
  Create();
  for (std::atomic<uint64_t>* field :
       {&page().step, &page().op_issued, &page().op_completed, &page().op_exchanges, &page().alive_at_stage}) {
    Pass(Seconds(5));
    EXPECT_TRUE(stall_detector_.stall().has_value());
    ++*field;
    Pass(Milliseconds(200));
    EXPECT_FALSE(stall_detector_.stall().has_value());
  }
}

TEST_F(StallDetectorTest, AProcessThatHeartbeatsIsNotFrozen) {
  Create();
  for (int i = 0; i < 20; ++i) {
    ++page().heartbeat;
    Pass(Milliseconds(400));
  }
  ASSERT_TRUE(stall_detector_.stall().has_value());
  EXPECT_FALSE(stall_detector_.stall()->frozen);
  Pass(Milliseconds(1600));
  EXPECT_FALSE(stall_detector_.stall()->frozen);
  Pass(Milliseconds(400));
  EXPECT_TRUE(stall_detector_.stall()->frozen);
}

TEST_F(StallDetectorTest, TimeInWhichTheDaemonDidNotRunHardlyCounts) {
  Create();
  Pass(Milliseconds(400));
  Pass(absl::Hours(1), absl::Hours(1));  // one look after an hour
  ASSERT_TRUE(stall_detector_.stall().has_value());
  EXPECT_LE(stall_detector_.stall()->duration, Seconds(3));
}

TEST_F(StallDetectorTest, TheOpIsTheOneThatRunsOrIsWaitedFor) {
  const struct {
    uint64_t issued, completed, op;
  } kCases[] = {{0, 0, 0}, {1, 0, 1}, {9, 8, 9}, {20, 5, 6}, {20, 20, 20}};
  EXPECT_EQ(stall_detector_.op(), 0u) << "no page";
  EXPECT_EQ(stall_detector_.step(), 0u);
  Create();
  for (const auto& test : kCases) {
    page().step = 100 + test.op;
    page().op_issued = test.issued;
    page().op_completed = test.completed;
    Pass(Milliseconds(200));
    EXPECT_EQ(stall_detector_.op(), test.op) << test.issued << " " << test.completed;
    EXPECT_EQ(stall_detector_.step(), 100 + test.op);
  }
}

}  // namespace
}  // namespace muster::agent
