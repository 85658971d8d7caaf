// A project reclaims its quota from a job that runs on lent slots: real processes, one slot.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

using nlohmann::json;

TEST(PreemptionTest, AJobOnLentSlotsStopsWithACheckpointAndResumesFromIt) {
  constexpr int kSteps = 3000;
  Cluster cluster;
  cluster.coordinator_flags = {"--preemption-min-run=1s"};
  cluster.StartCoordinator();
  const std::string probe = cluster.Submit({.name = "probe"});
  const std::string user = cluster.Job(probe)["owner"];
  ASSERT_EQ(cluster.Muster({"cancel", "-y", probe}).exit_code, 0);
  for (const auto& [project, nominal] : {std::pair("batch", "cpu=0"), std::pair("team", "cpu=1")}) {
    const Ran set = cluster.Muster({"quota", "set", project, "--cohort", "all", "--nominal", nominal, "--user", user});
    ASSERT_EQ(set.exit_code, 0) << set.err;
  }
  cluster.StartWorker(0, 1);
  const std::string low = cluster.Submit({.name = "low", .steps = kSteps, .extra = "project: batch\n"});
  ASSERT_TRUE(cluster.WaitForStep(low, 30));
  const std::string claimant = cluster.Submit({.name = "claimant", .priority = -1, .extra = "project: team\n"});
  ASSERT_TRUE(cluster.WaitForState(claimant, "completed"));
  ASSERT_TRUE(cluster.WaitForState(low, "completed"));
  const json described = cluster.MusterJson({"describe", low});
  const json& job = described["job"];
  EXPECT_EQ(Number(job.value("restarts", json("0"))), 0u);
  EXPECT_EQ(job["project"], "batch");
  const json& generations = described["generations"];  // newest first
  ASSERT_EQ(generations.size(), 2u);
  EXPECT_EQ(generations[1]["reason"], "preempted");
  EXPECT_GE(Number(generations[0]["resume_from"]["step"]), 30u);
  EXPECT_EQ(cluster.Losses(low).size(), static_cast<size_t>(kSteps)) << "every step, those before the stop, too";
  const std::string events = cluster.Muster({"events", low}).out;
  EXPECT_TRUE(absl::StrContains(events, absl::StrCat("preempted by ", claimant))) << events;
}

}  // namespace
}  // namespace muster::cluster
