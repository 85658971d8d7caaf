// A job that may run on fewer ranks, with real processes: it shrinks when a host is lost, grows back when the host
// returns, and loses or repeats no training.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"
#include "tests/faults/rank_fault.h"

namespace muster::faults {
namespace {

using cluster::Cluster;
using nlohmann::json;

// Steps of about 10 ms, so that the job outlives the faults.
constexpr int kSteps = 900, kEvery = 50, kSequences = 32;
constexpr uint32_t kAll = 4, kFew = 2;

cluster::JobOptions Job(const std::string& name, const std::string& extra) {
  return {.name = name, .steps = kSteps, .checkpoint_every = kEvery, .sequences = kSequences, .extra = extra};
}

// The job runs on this many ranks, in this generation or a later one.
bool RunsOn(Cluster& cluster, const std::string& id, uint64_t generation, uint32_t ranks) {
  return Eventually(
      [&] {
        const uint64_t newest = cluster.Generation(id);
        if (newest < generation || cluster.State(id) != "running") return false;
        uint32_t found = 0;
        while (FindRank(cluster, id, newest, found).ok()) ++found;
        return found == ranks;
      },
      absl::Seconds(60));
}

TEST(ElasticJob, ShrinksWhenAHostIsLostAndGrowsBack) {
  Cluster cluster;
  cluster.coordinator_flags = {"--detection=2s", "--grow-after=2s"};
  cluster.StartCoordinator();
  for (int worker = 0; worker < 2; ++worker) cluster.StartWorker(worker, 2);
  const std::string id = cluster.Submit(
      Job("elastic", absl::StrCat("resources: {ranks: ", kAll, ", min_ranks: ", kFew, "}\nstrategy: {kind: fsdp}\n")));
  ASSERT_TRUE(cluster.WaitForStep(id, 2 * kEvery));
  ASSERT_EQ(cluster.Trainers().size(), kAll);

  cluster.KillWorker(1);
  for (uint32_t rank = 0; rank < kAll; ++rank) {
    const absl::StatusOr<rundir::RankDir> dir = FindRank(cluster, id, 1, rank);
    ASSERT_TRUE(dir.ok()) << dir.status();
    if (dir->run() == cluster.RunDir(1)) kill(dir->ReadProcesses()->shim.pid, SIGKILL);  // its trainer dies with it
  }
  ASSERT_TRUE(RunsOn(cluster, id, 2, kFew)) << cluster.Job(id).dump(1);
  const uint64_t shrunk_at = cluster::Number(cluster.MusterJson({"describe", id})["last_metrics"]["step"]);
  ASSERT_GT(shrunk_at, 0u);
  ASSERT_TRUE(cluster.WaitForStep(id, shrunk_at + 2 * kEvery)) << "it continues with two ranks";

  cluster.StartWorker(1, 2);
  ASSERT_TRUE(RunsOn(cluster, id, 3, kAll)) << cluster.Job(id).dump(1);
  ASSERT_TRUE(cluster.WaitForState(id, "completed", absl::Minutes(10)));

  const json job = cluster.Job(id);
  const uint64_t restarts = cluster::Number(job.value("restarts", json(0)));
  EXPECT_GE(restarts, 1u);
  EXPECT_LE(restarts, cluster.LostOrHung(id)) << "growing costs none";
  uint64_t step = 0, published = 0;
  for (const json& event : cluster.Events(id)) {
    if (event.value("kind", "") != "checkpoint.published") continue;
    const std::string message = event.value("message", ""), of = "checkpoint of step ";
    const uint64_t its = std::stoull(message.substr(message.find(of) + of.size()));
    EXPECT_GT(its, step) << event;
    step = its;
    ++published;
  }
  EXPECT_EQ(step, static_cast<uint64_t>(kSteps));
  EXPECT_GE(published, static_cast<uint64_t>(kSteps / kEvery)) << "and the one before it grew";
  // The same samples in the same order: the losses are those of two ranks except for rounding.
  const std::string calm = cluster.Submit(Job("calm", "resources: {ranks: 2}\n"));
  ASSERT_TRUE(cluster.WaitForState(calm, "completed", absl::Minutes(10)));
  const std::vector<double> losses = cluster.Losses(id), undisturbed = cluster.Losses(calm);
  ASSERT_EQ(losses.size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(undisturbed.size(), losses.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    ASSERT_NEAR(losses[i] / undisturbed[i], 1, 0.02) << "step " << i + 1;
  }
}

}  // namespace
}  // namespace muster::faults
