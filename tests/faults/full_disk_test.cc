// The coordinator's disk is full: running jobs go on without their metrics and logs, and new ones are refused, until
// there is room again.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/file/read_file.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::faults {
namespace {

TEST(FullDisk, CostsHistoryAndNoJob) {
  cluster::Cluster cluster;
  // A disk of its own: of 64 MiB, of which 16 are reserved for the state of jobs.
  cluster.coordinator_state = cluster.folder() + "/disk";
  std::filesystem::create_directory(cluster.coordinator_state);
  // More than the reserve: when that is spent, its space is free, and new jobs are refused as before.
  cluster.coordinator_flags = {"--min-free-bytes=20000000"};
  cluster.prefix = [&](const std::string& name) -> std::vector<std::string> {
    if (name != "coordinator") return {};
    return {"/usr/bin/unshare",
            "-rm",
            "sh",
            "-c",
            absl::StrCat("mount -t tmpfs -o size=64m,mode=700 none ", cluster.coordinator_state, " && exec \"$@\""),
            "sh"};
  };
  cluster.StartCoordinator();
  cluster.StartWorker(0, 2);
  const std::string job = cluster.Submit({.name = "runs", .steps = 1'000'000, .checkpoint_every = 100});
  ASSERT_TRUE(cluster.WaitForStep(job, 250));  // the checkpoint of step 100 is written
  const std::string disk = absl::StrCat("/proc/", cluster.CoordinatorPid(), "/root", cluster.coordinator_state);
  const std::string filler = disk + "/filler";
  const auto log = [&] { return ReadWhole(cluster.folder() + "/coordinator.log").value_or(""); };
  // Written in pieces until the coordinator has no room, whatever it writes meanwhile.
  const std::string piece(4096, 'x');
  std::ofstream file(filler, std::ios::binary);
  ASSERT_TRUE(file.is_open());
  ASSERT_TRUE(Eventually(
      [&] {
        file.clear();
        while (file.write(piece.data(), static_cast<std::streamsize>(piece.size())).flush().good()) {
        }
        return absl::StrContains(log(), "the disk is full: metrics and logs are dropped");
      },
      absl::Seconds(60)))
      << log();
  const uint64_t step = cluster.FinalWeights("runs").first;
  const cluster::Ran refused = cluster.Muster({"submit", "-d", cluster.WriteJob({.name = "later", .steps = 5})});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_TRUE(absl::StrContains(refused.err, "no new jobs: the coordinator's disk at")) << refused.err;
  EXPECT_TRUE(absl::StrContains(cluster.Muster({"doctor"}).out, "no new jobs: the coordinator's disk"));
  EXPECT_TRUE(Eventually([&] { return cluster.FinalWeights("runs").first >= step + 500; }, absl::Seconds(60)));
  EXPECT_EQ(cluster.State(job), "running");
  EXPECT_EQ(cluster.Generation(job), 1u);
  const cluster::Ran cancelled = cluster.Muster({"cancel", "-y", job});
  EXPECT_EQ(cancelled.exit_code, 0) << cancelled.err;
  ASSERT_TRUE(cluster.WaitForState(job, "cancelled")) << "its end is stored in the reserved space";

  file.close();
  std::filesystem::remove(filler);
  const std::string next = cluster.Submit({.name = "next", .steps = 200});
  ASSERT_TRUE(cluster.WaitForState(next, "completed"));
  EXPECT_EQ(cluster.Losses(next).size(), 200u);
  EXPECT_TRUE(absl::StrContains(log(), "metrics and logs are stored again"));
  EXPECT_TRUE(std::filesystem::exists(disk + "/state.db-reserve")) << "for the next time";
}

}  // namespace
}  // namespace muster::faults
