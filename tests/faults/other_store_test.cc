// A coordinator that is started with another state folder on the same address: ranks go on, and the job completes once
// the right one is back.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::faults {
namespace {

TEST(OtherStore, RanksGoOnUntilTheirCoordinatorIsBack) {
  cluster::Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 2);
  const std::string id = cluster.Submit({.name = "long",
                                         .steps = 1'000'000,
                                         .checkpoint_every = 1000,
                                         .extra = "resources: {ranks: 2}\nstrategy: {kind: ddp}\nmax_restarts: 0\n"});
  ASSERT_TRUE(cluster.WaitForStep(id, 20));
  const std::vector<pid_t> trainers = cluster.Trainers();
  ASSERT_EQ(trainers.size(), 2u);
  cluster.KillCoordinator();
  cluster.coordinator_state = cluster.folder() + "/empty";
  cluster.StartCoordinator();
  const std::string state = cluster.folder() + "/w0-state";
  const auto adopt = [&] { return cluster.Muster({"worker", "adopt", "--state-dir", state}); };
  ASSERT_TRUE(Eventually([&] { return access((state + "/foreign_store").c_str(), F_OK) == 0; }, absl::Seconds(60)));
  EXPECT_EQ(cluster.MusterJson({"nodes"}).size(), 0u) << "it is no node of the empty store";
  EXPECT_EQ(cluster.Trainers(), trainers);
  cluster.StopCoordinator();
  cluster.coordinator_state.clear();
  cluster.StartCoordinator();
  const size_t before = cluster.Losses(id).size();
  ASSERT_TRUE(cluster.WaitForStep(id, before + 500));
  EXPECT_EQ(cluster.Generation(id), 1u) << "no rank was started again";
  EXPECT_GE(cluster.Losses(id).size(), before + 500) << "no step is missing";
  EXPECT_EQ(cluster.Trainers(), trainers);
  ASSERT_EQ(cluster.Muster({"cancel", "-y", id}).exit_code, 0);
  ASSERT_TRUE(cluster.WaitForState(id, "cancelled"));
  const cluster::Ran nothing = adopt();
  EXPECT_NE(nothing.exit_code, 0);
  EXPECT_TRUE(absl::StrContains(nothing.err, "has met no other coordinator")) << nothing.err;
  // Without ranks it goes to whoever calls.
  cluster.StopCoordinator();
  cluster.coordinator_state = cluster.folder() + "/third";
  cluster.StartCoordinator();
  EXPECT_TRUE(Eventually([&] { return cluster.MusterJson({"nodes"}).size() == 1; }, absl::Seconds(60)));
}

// A backup is restored while ranks run that it knows, and others that came after it.
TEST(OtherStore, ARestoredBackupGoesOnWithLiveWorkers) {
  cluster::Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 2);
  const auto submit = [&](const std::string& name) {
    return cluster.Submit({.name = name, .steps = 1'000'000, .checkpoint_every = 100});
  };
  const std::string steady = submit("steady"), moved = submit("moved");
  ASSERT_TRUE(cluster.WaitForStep(steady, 5) && cluster.WaitForStep(moved, 5));
  const std::string backup = cluster.folder() + "/backup.db";
  ASSERT_EQ(cluster.Muster({"backup", backup}).exit_code, 0);
  const std::vector<pid_t> before = cluster.Trainers();
  ASSERT_EQ(before.size(), 2u);
  // The second generation of `moved` is not in the backup.
  const auto of_moved = [&](pid_t pid) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/cmdline"));
    const std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    return absl::StrContains(line, moved);
  };
  pid_t victim = of_moved(before[0]) ? before[0] : before[1];
  ASSERT_TRUE(of_moved(victim));
  ASSERT_EQ(kill(victim, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] { return cluster.Generation(moved) == 2 && cluster.State(moved) == "running"; },
                         absl::Seconds(60)));
  // So long that the checkpoints of the backup are replaced.
  ASSERT_TRUE(cluster.WaitForStep(moved, 3000));
  cluster.KillCoordinator();
  const std::string state = cluster.folder() + "/c/state.db";
  std::filesystem::remove(state + "-journal");
  std::filesystem::copy_file(backup, state, std::filesystem::copy_options::overwrite_existing);
  cluster.StartCoordinator();
  // The checkpoint of `moved` that the backup knows is gone from its folder, which newer ones have replaced.
  ASSERT_TRUE(Eventually([&] { return cluster.Generation(moved) > 1000 && cluster.State(moved) == "running"; },
                         absl::Seconds(60)))
      << "2 is another one's number, and a backup's store cannot know how many more there were";
  ASSERT_TRUE(cluster.WaitForStep(steady, 6000) && cluster.WaitForStep(moved, 6000));
  EXPECT_EQ(cluster.State(steady), "running");
  EXPECT_EQ(cluster.Generation(steady), 1u) << "its rank went on";
  EXPECT_TRUE(absl::StrContains(cluster.Muster({"events"}).out, "this store was restored from a backup"));
}

}  // namespace
}  // namespace muster::faults
