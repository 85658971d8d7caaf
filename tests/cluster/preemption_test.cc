// A project reclaims its quota from a job that runs on lent slots: real processes, one slot.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

using nlohmann::json;

TEST(PreemptionTest, AJobOnLentSlotsStopsWithACheckpointAndResumesFromIt) {
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
  // Cancelled at the end: it holds the slot for however long the machine takes to preempt it.
  const std::string low =
      cluster.Submit({.name = "low", .steps = 1'000'000, .checkpoint_every = 1'000'000, .extra = "project: batch\n"});
  ASSERT_TRUE(cluster.WaitForStep(low, 30));
  const std::string claimant = cluster.Submit({.name = "claimant", .priority = -1, .extra = "project: team\n"});
  ASSERT_TRUE(cluster.WaitForState(claimant, "completed"));
  ASSERT_TRUE(Eventually([&] { return cluster.Generation(low) == 2; }));
  const json described = cluster.MusterJson({"describe", low});
  const json& job = described["job"];
  EXPECT_EQ(Number(job.value("restarts", json("0"))), 0u);
  EXPECT_EQ(job["project"], "batch");
  const json& generations = described["generations"];  // newest first
  ASSERT_EQ(generations.size(), 2u);
  EXPECT_EQ(generations[1]["reason"], "preempted");
  const uint64_t stopped = Number(generations[0]["resume_from"]["step"]);
  EXPECT_GE(stopped, 30u);
  ASSERT_TRUE(cluster.WaitForStep(low, stopped + 500));
  cluster.Cancel(low);
  const std::vector<uint64_t> steps = cluster.Steps(low);
  EXPECT_GE(steps.size(), stopped + 500);
  for (size_t i = 0; i < steps.size(); ++i) ASSERT_EQ(steps[i], i + 1) << "every step once, those before the stop, too";
  const std::string events = cluster.Muster({"events", low}).out;
  EXPECT_TRUE(absl::StrContains(events, absl::StrCat("preempted by ", claimant))) << events;
}

}  // namespace
}  // namespace muster::cluster
