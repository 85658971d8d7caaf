// A node without the data of every job: jobs run on the other one, and the node is drained. A node without the
// checkpoints of one: the job runs on the others.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::faults {
namespace {

TEST(BadNode, HurtsOnlyItself) {
  cluster::Cluster cluster;
  cluster.coordinator_flags = {"--node-fault-limit=3"};
  cluster.StartCoordinator();
  // A copy of the jobs' text in a folder that the first node does not see, as without a mount.
  const std::string mount = cluster.folder() + "/mount";
  std::filesystem::create_directory(mount);
  std::filesystem::copy_file(cluster.folder() + "/train.bin", mount + "/data.bin");
  cluster.prefix = [&](const std::string& name) -> std::vector<std::string> {
    if (name != "w0") return {};
    return {
        "/usr/bin/unshare", "-rm", "sh", "-c", absl::StrCat("mount -t tmpfs none ", mount, " && exec \"$@\""), "sh"};
  };
  for (int worker = 0; worker < 2; ++worker) cluster.StartWorker(worker, 1);
  ASSERT_TRUE(Eventually([&] { return cluster.MusterJson({"nodes"}).size() == 2; }, absl::Seconds(30)));
  std::vector<std::string> ids;
  for (int i = 0; i < 6; ++i) {
    const std::string path = cluster.WriteJob({.name = absl::StrCat("job", i), .steps = 5});
    const cluster::Ran ran =
        cluster.Muster({"submit", "-d", path, "--set", absl::StrCat("data.tokens=", mount, "/data.bin"), "-o", "name"});
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
    ids.push_back(ran.out.substr(0, ran.out.find('\n')));
  }
  int refused = 0;
  for (const std::string& id : ids) {
    ASSERT_TRUE(cluster.WaitForState(id, "completed")) << id;
    const nlohmann::json described = cluster.Job(id);
    EXPECT_EQ(described.value("restarts", 0), 0) << id;
    refused += static_cast<int>(described.value("refused_by", nlohmann::json::array()).size());
  }
  // Each job that was placed there counts once, until the node takes no more.
  EXPECT_EQ(refused, 3);
  const cluster::Ran nodes = cluster.Muster({"nodes"});
  EXPECT_TRUE(absl::StrContains(nodes.out, "live,draining,faulty")) << nodes.out;
  EXPECT_TRUE(absl::StrContains(nodes.out, "was drained by the coordinator after 3 faults in 10m: ")) << nodes.out;
}

// A node without the folder of the checkpoints joins a job that has some. The ranks of the other nodes, which could
// have resumed, end with that of the node; the job goes on without it.
TEST(BadNode, WithoutTheCheckpointsItIsLeftOut) {
  cluster::Cluster cluster;
  cluster.StartCoordinator();
  const std::string checkpoints = cluster.CheckpointPath("elastic");
  cluster.prefix = [&](const std::string& name) -> std::vector<std::string> {
    if (name != "w0") return {};
    return {"/usr/bin/unshare",
            "-rm",
            "sh",
            "-c",
            absl::StrCat("mount -t tmpfs none ", checkpoints, " && exec \"$@\""),
            "sh"};
  };
  for (const int worker : {1, 2}) cluster.StartWorker(worker, 1);
  const std::string id = cluster.Submit({.name = "elastic",
                                         .steps = 1'000'000,
                                         .checkpoint_every = 1'000'000,
                                         .sequences = 8,
                                         .extra = "resources: {ranks: 3, min_ranks: 2}\nstrategy: {kind: fsdp}\n"});
  ASSERT_TRUE(cluster.WaitForStep(id, 3));
  ASSERT_EQ(cluster.Muster({"pause", id}).exit_code, 0);
  ASSERT_TRUE(cluster.WaitForState(id, "paused"));
  cluster.StartWorker(0, 1);
  ASSERT_TRUE(Eventually(
      [&] {
        return cluster.MusterJson({"nodes"}).size() == 3 &&
               !absl::StrContains(cluster.Muster({"nodes"}).out, "not ready");
      },
      absl::Seconds(30)));
  const uint64_t before = cluster.Generation(id);
  ASSERT_EQ(cluster.Muster({"resume", id}).exit_code, 0);
  ASSERT_TRUE(Eventually([&] { return cluster.Generation(id) == before + 2; }, absl::Minutes(2)))
      << cluster.Muster({"describe", id}).out;
  ASSERT_TRUE(cluster.WaitForState(id, "running")) << cluster.Muster({"describe", id}).out;
  const nlohmann::json job = cluster.Job(id);
  const nlohmann::json refused = job.value("refused_by", nlohmann::json::array());
  ASSERT_EQ(refused.size(), 1u) << job;
  EXPECT_TRUE(absl::StrContains(refused[0].value("message", ""), "this node does not see " + checkpoints)) << job;
  EXPECT_EQ(job.value("restarts", 0), 0) << "it was no fault of the job's";
  EXPECT_EQ(cluster.Muster({"cancel", "-y", id}).exit_code, 0);
  EXPECT_TRUE(cluster.WaitForState(id, "cancelled"));
}

}  // namespace
}  // namespace muster::faults
