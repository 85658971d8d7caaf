// Quotas and fair share, by worked examples.
#include "coordinator/scheduler/quota.h"

#include <gtest/gtest.h>

#include "coordinator/scheduler/fair_share.h"
#include "coordinator/scheduler/queue_order.h"

namespace muster::scheduler {
namespace {

// Kueue's documentation of ClusterQueue: in one cohort team-a has nominal 9 and team-b 12. While team-b runs nothing,
// team-a may use 9 + 12 = 21; with a borrowing limit of 1 it may use 10.
TEST(QuotaExamples, KueuesCohort) {
  const auto of = [](std::optional<uint64_t> limit) {
    Quotas quotas;
    quotas.Set("a", DEVICE_CPU, {.nominal = 9, .borrowing_limit = limit, .cohort = "teams"});
    quotas.Set("b", DEVICE_CPU, {.nominal = 12, .cohort = "teams"});
    return quotas;
  };
  EXPECT_EQ(of(std::nullopt).Room("a", DEVICE_CPU), 21u);
  EXPECT_EQ(of(1).Room("a", DEVICE_CPU), 10u);
  EXPECT_EQ(of(0).Room("a", DEVICE_CPU), 9u);
  Quotas quotas = of(std::nullopt);
  quotas.Hold("b", DEVICE_CPU, 10);
  EXPECT_EQ(quotas.Room("a", DEVICE_CPU), 11u) << "two of b's are idle";
  quotas.Hold("a", DEVICE_CPU, 11);
  EXPECT_EQ(quotas.Room("a", DEVICE_CPU), 0u);
  EXPECT_TRUE(quotas.Borrows("a", DEVICE_CPU));
  EXPECT_FALSE(quotas.Borrows("b", DEVICE_CPU));
  EXPECT_EQ(quotas.Guaranteed("b", DEVICE_CPU), 2u);
  EXPECT_EQ(quotas.Room("b", DEVICE_CPU), 2u) << "lent, but its own";
  EXPECT_EQ(quotas.Why("a", DEVICE_CPU, 4),
            "project a may not take 4 more cpu slots: it holds 11, its nominal quota is 9");
  quotas.Release("a", DEVICE_CPU, 2);
  EXPECT_FALSE(quotas.Borrows("a", DEVICE_CPU));
}

TEST(QuotaExamples, CohortsAndDevicesAreApart) {
  Quotas quotas;
  quotas.Set("a", DEVICE_CUDA, {.nominal = 4, .cohort = "x"});
  quotas.Set("b", DEVICE_CUDA, {.nominal = 4, .cohort = "y"});
  quotas.Set("c", DEVICE_CPU, {.nominal = 4, .cohort = "x"});
  EXPECT_EQ(quotas.Room("a", DEVICE_CUDA), 4u);
  EXPECT_EQ(quotas.Room("a", DEVICE_CPU), Quotas::kUnlimited);
}

TEST(QuotaExamples, WithoutACohortNothingIsLent) {
  Quotas quotas;
  quotas.Set("a", DEVICE_CPU, {.nominal = 2});
  quotas.Set("b", DEVICE_CPU, {.nominal = 2});
  EXPECT_EQ(quotas.Room("a", DEVICE_CPU), 2u);
  quotas.Hold("a", DEVICE_CPU, 2);
  EXPECT_EQ(quotas.Room("a", DEVICE_CPU), 0u);
}

TEST(QuotaExamples, AProjectWithoutAQuotaIsLimitedByNothingAndGuaranteedNothing) {
  Quotas quotas;
  quotas.Hold("default", DEVICE_CPU, 3);
  EXPECT_FALSE(quotas.Borrows("default", DEVICE_CPU)) << "no project has a quota";
  quotas.Set("a", DEVICE_CPU, {.nominal = 2});
  EXPECT_TRUE(quotas.Borrows("default", DEVICE_CPU));
  EXPECT_EQ(quotas.Room("default", DEVICE_CPU), Quotas::kUnlimited);
  EXPECT_EQ(quotas.Guaranteed("default", DEVICE_CPU), 0u);
}

TEST(FairShare, HalfIsLeftAfterAHalfLife) {
  const absl::Duration week = absl::Hours(24 * 7);
  EXPECT_DOUBLE_EQ(Decayed(1000, week, week), 500);
  EXPECT_DOUBLE_EQ(Decayed(1000, 3 * week, week), 125);
  EXPECT_DOUBLE_EQ(Decayed(1000, absl::ZeroDuration(), week), 1000);
  EXPECT_DOUBLE_EQ(Decayed(1000, week, absl::InfiniteDuration()), 1000);
  // In two steps as in one.
  EXPECT_NEAR(Decayed(Decayed(1000, absl::Hours(5), week), absl::Hours(9), week), Decayed(1000, absl::Hours(14), week),
              1e-9);
}

TEST(FairShare, TheOrderIsOwnQuotaThenPriorityThenProjectThenUserThenSequence) {
  const absl::Duration unknown = absl::InfiniteDuration();
  std::vector<Claim> queue = {
      {JobId("lent"), 9, 1, unknown, true, 0, 0},       {JobId("first"), 0, 2, unknown, false, 2, 0},
      {JobId("light"), 0, 3, unknown, false, 1, 7},     {JobId("lighter"), 0, 4, unknown, false, 1, 6},
      {JobId("urgent"), 1, 5, unknown, false, 100, 50}, {JobId("same"), 0, 6, unknown, false, 1, 6},
  };
  SortQueue(queue);
  std::string order;
  for (const Claim& claim : queue) order += claim.job.value() + " ";
  EXPECT_EQ(order, "urgent lighter same light first lent ");
}

}  // namespace
}  // namespace muster::scheduler
