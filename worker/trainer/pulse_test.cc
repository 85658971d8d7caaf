#include "worker/trainer/pulse.h"

#include <gtest/gtest.h>

#include <utility>

#include "testing/temporary_folder.h"
#include "testing/wait.h"

namespace muster::trainer {
namespace {

class PulseTest : public testing::Test {
 protected:
  void Start(absl::Duration patience) {
    pulse_ = Pulse::Start(folder_.path(), patience).value();
    page_ = rundir::ProgressPage::Open(folder_.path()).value();
  }
  const rundir::Progress& page() const { return *std::as_const(*page_).operator->(); }
  void WaitForHeartbeats(uint64_t count) {
    const uint64_t before = page().heartbeat;
    EXPECT_TRUE(Eventually([&] { return page().heartbeat >= before + count; }));
  }

  TemporaryFolder folder_;
  std::unique_ptr<Pulse> pulse_;
  std::unique_ptr<rundir::ProgressPage> page_;
};

TEST_F(PulseTest, OpsAreNumberedAndAWaitShowsWhatItIsFor) {
  Start(absl::Minutes(1));
  EXPECT_EQ(page().stage, rundir::kLoading);
  pulse_->Enter(rundir::kReading);
  EXPECT_EQ(page().op_issued, 0u);
  pulse_->Begin(0, OpKind::kGather);
  EXPECT_EQ(page().stage, rundir::kOps + static_cast<uint64_t>(OpKind::kGather));
  EXPECT_EQ(page().op_issued, 1u);
  EXPECT_EQ(page().op_completed, 0u);
  pulse_->Begin(7, OpKind::kForward);
  EXPECT_EQ(page().op_issued, 8u);
  EXPECT_EQ(page().op_completed, 7u);
  pulse_->WaitFor(3, OpKind::kReduce);
  EXPECT_EQ(page().op_issued, 8u);
  EXPECT_EQ(page().op_completed, 3u) << "the rank waits for op 4";
  EXPECT_EQ(page().stage, rundir::kOps + static_cast<uint64_t>(OpKind::kReduce));
  pulse_->EndWait(7, OpKind::kForward);
  EXPECT_EQ(page().stage, rundir::kOps + static_cast<uint64_t>(OpKind::kForward));
  EXPECT_EQ(page().op_completed, 7u);
  pulse_->EndStep();
  pulse_->FinishStep(5);
  EXPECT_EQ(page().stage, rundir::kReporting);
  EXPECT_EQ(page().op_issued, 0u);
  EXPECT_EQ(page().op_completed, 0u);
  EXPECT_EQ(page().step, 5u);
}

TEST_F(PulseTest, ExchangesAreCountedInEachOp) {
  Start(absl::Minutes(1));
  EXPECT_EQ(page().op_exchanges, 1u) << "none, plus 1: this build counts";
  pulse_->Begin(3, OpKind::kForward);
  EXPECT_EQ(page().op_exchanges, 1u);
  pulse_->Exchange();
  pulse_->Exchange();
  EXPECT_EQ(page().op_exchanges, 3u);
  EXPECT_EQ(page().op_issued, 4u);
  EXPECT_EQ(page().op_completed, 3u);
  pulse_->Begin(4, OpKind::kForward);
  EXPECT_EQ(page().op_exchanges, 1u);
  pulse_->Exchange();
  EXPECT_EQ(page().op_exchanges, 2u);
  pulse_->EndStep();
  EXPECT_EQ(page().op_exchanges, 1u);
}

TEST_F(PulseTest, AStageIsAliveAndAnOpIsNot) {
  Start(absl::Minutes(1));
  const uint64_t before = page().alive_at_stage;
  EXPECT_TRUE(Eventually([&] { return page().alive_at_stage >= before + 2; }));
  pulse_->Begin(0, OpKind::kForward);
  WaitForHeartbeats(1);  // one may have been in progress
  const uint64_t then = page().alive_at_stage;
  WaitForHeartbeats(3);
  EXPECT_EQ(page().alive_at_stage, then);
}

TEST_F(PulseTest, AStageThatLastsForEverStandsStill) {
  Start(absl::Milliseconds(500));
  EXPECT_TRUE(Eventually([&] { return page().alive_at_stage == 2; }));
  WaitForHeartbeats(3);
  EXPECT_EQ(page().alive_at_stage, 2u);
  pulse_->Enter(rundir::kCheckpointing);
  EXPECT_TRUE(Eventually([&] { return page().alive_at_stage == 4; })) << "the next stage starts from zero";
}

}  // namespace
}  // namespace muster::trainer
