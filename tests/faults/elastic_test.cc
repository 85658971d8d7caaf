// A job that may run on fewer ranks, with real processes: it shrinks when a host is lost, grows back when the host
// returns, and loses or repeats no training.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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

// The newest generation is this one, it runs, and it has this many ranks.
bool RunsOn(Cluster& cluster, const std::string& id, uint64_t generation, uint32_t ranks) {
  const bool runs = Eventually([&] { return cluster.State(id) == "running" && cluster.Generation(id) == generation; },
                               absl::Seconds(60));
  if (!runs) return false;
  uint32_t found = 0;
  while (FindRank(cluster, id, generation, found).ok()) ++found;
  return found == ranks;
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
  const uint64_t shrunk_at = cluster::Number(cluster.Job(id)["progress"]["step"]);
  ASSERT_TRUE(cluster.WaitForStep(id, shrunk_at + 2 * kEvery)) << "it continues with two ranks";

  cluster.StartWorker(1, 2);
  ASSERT_TRUE(RunsOn(cluster, id, 3, kAll)) << cluster.Job(id).dump(1);
  ASSERT_TRUE(cluster.WaitForState(id, "completed", absl::Minutes(10)));

  const json job = cluster.Job(id);
  EXPECT_EQ(job.value("restarts", 0), 1) << "growing costs none";
  uint64_t step = 0, published = 0;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(cluster.Muster({"events", id, "-o", "json"}).out, '\n'))) {
    const json event = json::parse(line, nullptr, false);
    if (!event.is_object() || event.value("kind", "") != "checkpoint.published") continue;
    const std::string message = event.value("message", ""), of = "checkpoint of step ";
    const uint64_t its = std::stoull(message.substr(message.find(of) + of.size()));
    EXPECT_GT(its, step) << line;
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
