#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "coordinator/simulate/month/policies.h"
#include "coordinator/simulate/month/tally.h"
#include "coordinator/simulate/month/workload.h"

namespace muster::simulate {
namespace {

TEST(Workload, IsAsDescribed) {
  const Month month = MakeMonth({});
  double offered = 0;
  uint32_t users = 0, quota = 0;
  std::set<uint32_t> submitting;
  uint64_t of_one = 0, by_day = 0, in_third_week = 0, of_speech = 0;
  for (const MonthProject& project : month.projects) users += project.users, quota += project.nominal;
  EXPECT_EQ(users, 40u);
  EXPECT_EQ(quota, kMonthSlots);
  for (const MonthJob& job : month.jobs) {
    offered += job.ranks * absl::ToDoubleHours(job.runs);
    submitting.insert(job.user);
    of_one += job.ranks == 1;
    const double hour = absl::ToDoubleHours(job.submitted % absl::Hours(24));
    by_day += hour >= 9 && hour < 19;
    if (month.projects[job.project].name == "speech") {
      ++of_speech;
      in_third_week += job.submitted >= absl::Hours(24 * 14) && job.submitted < absl::Hours(24 * 21);
    }
    ASSERT_GE(job.time_limit, 1.2 * job.runs);
    ASSERT_LE(job.ranks, kMonthSlots / 2);
  }
  const auto jobs = static_cast<double>(month.jobs.size());
  EXPECT_EQ(submitting.size(), 40u);
  EXPECT_NEAR(offered / (kMonthSlots * 24 * 30), 0.9, 0.05);
  EXPECT_NEAR(static_cast<double>(of_one) / jobs, 0.5, 0.05);
  EXPECT_GT(by_day, month.jobs.size() / 2);
  EXPECT_GT(in_third_week, of_speech / 2);
  EXPECT_TRUE(std::is_sorted(month.jobs.begin(), month.jobs.end(),
                             [](const MonthJob& a, const MonthJob& b) { return a.submitted < b.submitted; }));
  const Month again = MakeMonth({}), other = MakeMonth({.seed = 2});
  EXPECT_EQ(again.jobs.size(), month.jobs.size());
  EXPECT_NE(other.jobs.size(), month.jobs.size());
}

Month Of(std::vector<MonthProject> projects, std::vector<MonthJob> jobs) {
  return {.length = absl::Hours(24), .projects = std::move(projects), .jobs = std::move(jobs)};
}

// A holds 200 GPUs for 61 minutes, its start included, and its limit is 2 hours. B needs 250. C would end before A's
// limit, D would not.
TEST(Policies, BackfillByTimeLimits) {
  using absl::Hours, absl::Minutes;
  const Month month = Of({{"all", kMonthSlots, 1}}, {{Minutes(0), 0, 0, 200, Hours(1), Hours(2)},
                                                     {Minutes(1), 0, 0, 250, Hours(1), Hours(2)},
                                                     {Minutes(2), 0, 0, 56, Minutes(10), Minutes(30)},
                                                     {Minutes(3), 0, 0, 56, Minutes(10), Hours(5)}});
  const MonthFigures fifo = ReplayFifo(month);
  EXPECT_EQ(fifo.by_size[0].p50, Minutes(119));
  EXPECT_EQ(fifo.by_size[0].max, Minutes(120)) << "C waits for B to end";
  for (const MonthFigures& figures : {ReplaySlurm(month), ReplayMuster(month)}) {
    EXPECT_EQ(figures.by_size[0].p50, Minutes(60)) << figures.policy << ": B waits for A";
    EXPECT_EQ(figures.by_size[0].max, Minutes(119)) << figures.policy << ": D waits for B";
    EXPECT_EQ(figures.not_completed, 0u);
  }
}

// A project's only job holds all, half of it lent; after an hour the other project needs its own half.
TEST(Policies, OnlyMusterReclaimsAGuarantee) {
  using absl::Hours, absl::Minutes;
  const Month month = Of({{"a", 128, 1}, {"b", 128, 1}},
                         {{Minutes(0), 0, 0, 256, Hours(10), Hours(24)}, {Hours(1), 1, 1, 128, Hours(1), Hours(2)}});
  for (const MonthFigures& figures : {ReplayFifo(month), ReplaySlurm(month)}) {
    EXPECT_EQ(figures.below_guarantee[1], Hours(9) + Minutes(1)) << figures.policy;
    EXPECT_EQ(figures.by_size[0].max, Hours(9) + Minutes(1));
    EXPECT_EQ(figures.preemptions, 0u);
  }
  const MonthFigures muster = ReplayMuster(month);
  EXPECT_EQ(muster.below_guarantee[1], kMonthStop);
  EXPECT_EQ(muster.by_project[1].max, kMonthStop);
  EXPECT_EQ(muster.by_project[0].max, Hours(1) + kMonthStart) << "while the other one runs";
  EXPECT_EQ(muster.preemptions, 1u);
  EXPECT_EQ(muster.not_completed, 0u);
  // 256 GPUs for two starts and a stop, 128 for a start.
  const double overhead = 256 * 150 + 128 * 60, trained = 3600.0 * (256 * 10 + 128);
  EXPECT_NEAR(muster.overhead, overhead / (overhead + trained), 1e-9);
}

// Two projects wait while one of them holds nothing.
TEST(Tally, JainsIndexIsOfThoseThatWait) {
  using absl::Hours;
  const Month month = Of({{"a", 128, 1}, {"b", 128, 1}, {"c", 0, 0}}, {{Hours(0), 0, 0, 256, Hours(2), Hours(4)},
                                                                       {Hours(0), 0, 0, 1, Hours(1), Hours(4)},
                                                                       {Hours(0), 1, 1, 128, Hours(1), Hours(4)}});
  EXPECT_DOUBLE_EQ(ReplayFifo(month).jain, 0.5);
}

TEST(Policies, AShortMonthIsReplayedToItsEndAndAlwaysTheSame) {
  const Month month = MakeMonth({.seed = 3, .days = 3});
  const auto replay = [&] {
    std::vector<MonthFigures> all = {ReplayFifo(month), ReplaySlurm(month), ReplayMuster(month)};
    for (const MonthFigures& figures : all) {
      EXPECT_EQ(figures.not_completed, 0u) << figures.policy;
      EXPECT_EQ(figures.by_size[0].jobs, month.jobs.size());
      EXPECT_GT(figures.utilization, 0.2);
      EXPECT_LE(figures.utilization, 1);
    }
    return TableOf(month, all);
  };
  EXPECT_EQ(replay(), replay());
}

}  // namespace
}  // namespace muster::simulate
