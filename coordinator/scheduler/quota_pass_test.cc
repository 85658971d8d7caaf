// By worked examples: a project that may hold 8 slots, of which jobs hold some, and the jobs that wait.
#include "coordinator/scheduler/quota_pass.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

namespace muster::scheduler {
namespace {

constexpr absl::Duration kNoLimit = absl::InfiniteDuration();

Claim Of(uint64_t sequence, absl::Duration ends_in = kNoLimit, bool borrows = false) {
  return {.job = JobId("j" + std::to_string(sequence)),
          .sequence = sequence,
          .ends_in = ends_in,
          .borrows = borrows,
          .project = 1};
}

class QuotaPassTest : public ::testing::Test {
 protected:
  explicit QuotaPassTest(std::string cohort = "") {
    Quotas quotas;
    quotas.Set("a", DEVICE_CPU, {.nominal = 8, .cohort = cohort});
    quotas.Set("b", DEVICE_CPU, {.nominal = 4, .cohort = cohort});
    pass_ = std::make_unique<QuotaPass>(std::move(quotas));
  }
  void Runs(const Claim& claim, uint64_t slots, const std::string& project = "a") {
    pass_->Run(project, DEVICE_CPU, claim, slots);
  }
  uint64_t RoomFor(const Claim& claim, uint64_t least, const std::string& project = "a",
                   absl::Duration idle_from = absl::ZeroDuration()) {
    return pass_->Consider(project, DEVICE_CPU, claim, least, idle_from);
  }

  std::unique_ptr<QuotaPass> pass_;
};

TEST_F(QuotaPassTest, LaterJobsLeaveTheHeadWhatItNeeds) {
  Runs(Of(1), 5);
  EXPECT_EQ(RoomFor(Of(2), 6), 3u);
  EXPECT_TRUE(pass_->IsHead("a", DEVICE_CPU, JobId("j2")));
  EXPECT_EQ(RoomFor(Of(3), 1), 2u) << "8 - 6";
  Runs(Of(3), 1);
  EXPECT_EQ(RoomFor(Of(4), 2), 1u);
  EXPECT_EQ(pass_->Why("a", DEVICE_CPU, JobId("j4"), 2),
            "waiting behind j2, for which 6 slots of project a's quota are kept");
  EXPECT_EQ(pass_->Why("a", DEVICE_CPU, JobId("j2"), 6),
            "project a may not take 6 more cpu slots: it holds 6, its nominal quota is 8");
}

// In a later pass they are running jobs like others, which hold the project's own quota while the head would borrow.
TEST_F(QuotaPassTest, JobsThatHaveOvertakenTheHeadStillCount) {
  Runs(Of(1), 4);
  Runs(Of(3), 2);
  EXPECT_EQ(RoomFor(Of(2, kNoLimit, /*borrows=*/true), 6), 2u);
  EXPECT_EQ(RoomFor(Of(4, kNoLimit, /*borrows=*/true), 1), 0u);
}

TEST_F(QuotaPassTest, OneThatEndsBeforeTheHeadStartsMayOvertakeIt) {
  Runs(Of(1, absl::Hours(2)), 3);
  Runs(Of(2, absl::Hours(1)), 3);
  Runs(Of(3), 1);
  EXPECT_EQ(RoomFor(Of(4), 5), 1u) << "it starts when j1 and j2 have ended: in 2 hours";
  EXPECT_TRUE(pass_->EndsBeforeHead("a", DEVICE_CPU, Of(5, absl::Hours(2))));
  EXPECT_EQ(RoomFor(Of(5, absl::Hours(2)), 1), 1u);
  EXPECT_FALSE(pass_->EndsBeforeHead("a", DEVICE_CPU, Of(6, absl::Hours(3))));
  EXPECT_EQ(RoomFor(Of(6, absl::Hours(3)), 1), 1u) << "8 - 5 - the 1 of j3 are 2, but 1 is free";
  Runs(Of(6, absl::Hours(3)), 1);
  EXPECT_EQ(RoomFor(Of(7, absl::Hours(3)), 1), 0u);
}

TEST_F(QuotaPassTest, OneThatCanNeverStartHoldsBackNoOther) {
  Runs(Of(1), 5);
  EXPECT_EQ(RoomFor(Of(2), 9), 3u) << "more than the project may hold";
  EXPECT_EQ(RoomFor(Of(3), 6, "a", absl::InfiniteDuration()), 3u) << "more than an idle cluster holds";
  EXPECT_EQ(RoomFor(Of(4), 1), 3u);
}

TEST_F(QuotaPassTest, OtherProjectsAndDevicesAreNotHeldBack) {
  Runs(Of(1), 5);
  RoomFor(Of(2), 6);
  EXPECT_EQ(RoomFor(Of(3), 1, "b"), 4u);
  EXPECT_EQ(pass_->Consider("a", DEVICE_CUDA, Of(4), 1, absl::ZeroDuration()), Quotas::kUnlimited);
}

class InACohort : public QuotaPassTest {
 protected:
  InACohort() : QuotaPassTest("lab") {}
};

TEST_F(InACohort, WhatIsLentNowCountsAsWhatTheProjectMayHold) {
  Runs(Of(1), 5);
  EXPECT_EQ(RoomFor(Of(2), 9), 7u) << "12 in the cohort";
  EXPECT_TRUE(pass_->IsHead("a", DEVICE_CPU, JobId("j2")));
  EXPECT_EQ(RoomFor(Of(3), 1), 3u) << "12 - 9";
  Runs(Of(9), 2, "b");
  EXPECT_EQ(RoomFor(Of(4), 1), 1u) << "10 - 9";
}

}  // namespace
}  // namespace muster::scheduler
