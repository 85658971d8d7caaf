// Runs with local steps, every process real: the same numbers as data-parallel training where both are the same method,
// and replicas that are killed.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

std::string RunOf(const std::string& first) { return first.substr(0, first.size() - 2); }

// Exchanged after every step by outer SGD with a learning rate of 1, local steps of SGD without momentum are those of
// ddp with all ranks of all replicas.
TEST(LocalSteps, ExchangedAfterEveryStepTheyAreDdp) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 4);
  const std::string sgd = "optimizer: {kind: sgd, lr: 0.1, momentum: 0, clip_norm: 0}\n";
  const std::string ddp = cluster.Submit(
      {.name = "ddp", .steps = 12, .sequences = 8, .extra = sgd + "resources: {ranks: 4}\nstrategy: ddp\n"});
  ASSERT_TRUE(cluster.WaitForState(ddp, "completed"));
  const std::vector<double> expected = cluster.Losses(ddp);
  ASSERT_EQ(expected.size(), 12u);
  for (const std::string strategy : {"ddp", "fsdp"}) {
    const std::string name = "local-" + strategy;
    const std::string first = cluster.Submit({.name = name,
                                              .steps = 12,
                                              .sequences = 4,
                                              .extra = sgd + "resources: {ranks: 2}\nstrategy: " + strategy +
                                                       "\nsync: {every: 1, values: fp32, patience_seconds: 60, "
                                                       "outer: {lr: 1, momentum: 0, nesterov: false}}\n"});
    std::vector<std::vector<double>> losses;
    for (const int replica : {0, 1}) {
      const std::string id = absl::StrCat(RunOf(first), "-", replica);
      ASSERT_TRUE(cluster.WaitForState(id, "completed"));
      losses.push_back(cluster.Losses(id));
      ASSERT_EQ(losses.back().size(), expected.size());
    }
    for (size_t s = 0; s < expected.size(); ++s) {
      EXPECT_NEAR((losses[0][s] + losses[1][s]) / 2, expected[s], 5e-6 * expected[s]) << strategy << " " << s;
      EXPECT_NE(losses[0][s], losses[1][s]) << "each replica has its own samples";
    }
    const auto weights = cluster.FinalWeights(name + "/replica-0");
    EXPECT_EQ(weights.first, 12u);
    EXPECT_EQ(weights, cluster.FinalWeights(name + "/replica-1")) << "bit-equal, outer parameters and momentum too";
  }
}

TEST(LocalSteps, AReplicaThatIsKilledIsNotWaitedForAndCatchesUp) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 2);
  cluster.StartWorker(1, 2);
  const std::string first =
      cluster.Submit({.name = "far",
                      .steps = 1500,
                      .checkpoint_every = 20,
                      .extra = "resources: {ranks: 2}\nstrategy: fsdp\nsync: {every: 8, fragments: "
                               "2, delay: 2, values: int4, patience_seconds: 5}\n"});
  const std::string run = RunOf(first), second = run + "-1";
  ASSERT_TRUE(cluster.WaitForStep(second, 60));
  const uint64_t generation = cluster.Generation(first);
  // The trainers of the second replica, by its id in their command lines.
  const Ran killed =
      cluster.Shell(absl::StrCat("pkill -KILL -f 'muster-trainer run.*--job ", second, " '"), cluster.folder());
  ASSERT_EQ(killed.exit_code, 0) << killed.err;
  ASSERT_TRUE(cluster.WaitForState(first, "completed"));
  ASSERT_TRUE(cluster.WaitForState(second, "completed"));
  EXPECT_EQ(cluster.Generation(first), generation) << "the other replica is not disturbed";
  EXPECT_EQ(cluster.Generation(second), generation + 1);
  const std::string undisturbed = cluster.Muster({"logs", first, "--rank", "0"}).out;
  EXPECT_TRUE(absl::StrContains(undisturbed, "replicas=0 ")) << "exchanges alone";
  EXPECT_TRUE(absl::StrContains(undisturbed, "replicas=0,1"));
  EXPECT_TRUE(absl::StrContains(cluster.Muster({"logs", second, "--rank", "1"}).out, "caught up with other replicas"));
  // All at once, by the run's id.
  const Ran deleted = cluster.Muster({"delete", "-y", run});
  EXPECT_EQ(deleted.exit_code, 0) << deleted.err;
  EXPECT_FALSE(absl::StrContains(cluster.Muster({"ps", "-a"}).out, run));
}

TEST(LocalSteps, MistakesAreNamed) {
  Cluster cluster;
  cluster.StartCoordinator();
  const auto errors = [&](const std::string& extra) {
    return cluster.Muster({"plan", cluster.WriteJob({.name = "wrong", .extra = extra})}).err;
  };
  EXPECT_TRUE(absl::StrContains(errors("sync: {replicas: 1}\n"), "sync.replicas"));
  EXPECT_TRUE(absl::StrContains(errors("sync: {evry: 5}\n"), "did you mean sync.every"));
  EXPECT_TRUE(absl::StrContains(errors("sync: {every: 8, fragments: 4, delay: 3}\n"), "sync.delay"));
  EXPECT_TRUE(absl::StrContains(errors("sync: {mix: 0.5}\n"), "needs a delay"));
  EXPECT_TRUE(absl::StrContains(errors("sync: {}\nstrategy: auto\n"), "replicas could get different ones"));
  EXPECT_TRUE(absl::StrContains(errors("sync: {run: other}\n"), "set by the coordinator"));
}

}  // namespace
}  // namespace muster::cluster
