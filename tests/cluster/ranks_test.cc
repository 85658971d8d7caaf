// Jobs of several ranks with every process real: ranks on one node and on two give the same numbers as one rank, and
// all ranks stop after the same step.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "testing/temporary_folder.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

using nlohmann::json;

std::string Ranks(int ranks) { return absl::StrCat("resources: {ranks: ", ranks, "}\n"); }

TEST(Ranks, OnTwoNodesTrainAsOneRankDoes) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 2);
  cluster.StartWorker(1, 1);
  const std::string one = cluster.Submit({.name = "one", .steps = 20});
  ASSERT_TRUE(cluster.WaitForState(one, "completed"));
  const std::string three = cluster.Submit({.name = "three", .steps = 20, .extra = Ranks(3)});
  ASSERT_TRUE(cluster.WaitForState(three, "completed"));
  const std::vector<double> a = cluster.Losses(one), b = cluster.Losses(three);
  ASSERT_EQ(a.size(), 20u);
  ASSERT_EQ(b.size(), 20u) << "one point a step, from one rank";
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(b[i], a[i], 5e-6 * a[i]) << "step " << i + 1;
  EXPECT_EQ(cluster.FinalWeights("three").first, 20u);
  EXPECT_EQ(cluster.Job(three)["generation"].dump(), cluster.Job(one)["generation"].dump()) << "no restart";
}

TEST(Ranks, PauseStopsAllAfterTheSameStepWithACheckpoint) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 2);
  const std::string id = cluster.Submit({.name = "paused", .steps = 100000, .checkpoint_every = 0, .extra = Ranks(2)});
  ASSERT_TRUE(cluster.WaitForStep(id, 20));
  const Ran paused = cluster.Muster({"pause", id});
  EXPECT_EQ(paused.exit_code, 0) << paused.err;
  ASSERT_TRUE(cluster.WaitForState(id, "paused"));
  EXPECT_TRUE(cluster.Trainers().empty());
  EXPECT_GE(cluster.FinalWeights("paused").first, 20u);
  EXPECT_EQ(cluster.Muster({"resume", id}).exit_code, 0);
  ASSERT_TRUE(cluster.WaitForStep(id, cluster.FinalWeights("paused").first + 5));
  EXPECT_EQ(cluster.Muster({"cancel", "-y", id}).exit_code, 0);
  EXPECT_TRUE(cluster.WaitForState(id, "cancelled"));
}

// As ranks on GPUs run: a step is issued before the result of the one before is read. A checkpoint on request, a trace
// and a stop each drain what is in flight, at another step on every rank.
TEST(Ranks, OneStepAheadOfTheirResultsTheyAreStoppedAndAskedAllTheSame) {
  const TemporaryFolder bin;
  const std::string trainer = bin.path() + "/muster-trainer";
  std::ofstream(trainer) << "#!/bin/sh\nexec " << std::filesystem::canonical("worker/trainer/muster-trainer").string()
                         << " \"$@\" $([ \"$1\" = run ] && echo --streams)\n";
  std::filesystem::permissions(trainer, std::filesystem::perms::owner_all);
  Cluster cluster;
  cluster.worker_flags = {"--trainer", trainer};
  cluster.StartCoordinator();
  cluster.StartWorker(0, 3);
  const std::string more = Ranks(3) + "strategy: {kind: fsdp}\n";
  const std::string asked = cluster.Submit({.name = "asked", .steps = 1'000'000, .checkpoint_every = 0, .extra = more});
  ASSERT_TRUE(cluster.WaitForStep(asked, 10));
  EXPECT_EQ(cluster.Muster({"checkpoint", "now", asked}).exit_code, 0);
  const Ran traced = cluster.Muster({"trace", asked, "--steps", "2", "--save", bin.path() + "/trace.json"});
  EXPECT_EQ(traced.exit_code, 0) << traced.err;
  EXPECT_EQ(cluster.Muster({"pause", asked}).exit_code, 0);
  ASSERT_TRUE(cluster.WaitForState(asked, "paused"));
  const auto [steps, weights] = cluster.FinalWeights("asked");
  const std::string calm =
      cluster.Submit({.name = "calm", .steps = static_cast<int>(steps), .checkpoint_every = 0, .extra = more});
  ASSERT_TRUE(cluster.WaitForState(calm, "completed"));
  EXPECT_EQ(cluster.FinalWeights("calm"), std::make_pair(steps, weights));
  EXPECT_EQ(cluster.Muster({"resume", asked}).exit_code, 0);
  EXPECT_TRUE(cluster.WaitForStep(asked, steps + 5));
  EXPECT_EQ(cluster.Muster({"cancel", "-y", asked}).exit_code, 0);
  EXPECT_TRUE(cluster.WaitForState(asked, "cancelled"));
}

TEST(Ranks, OneThatRefusesEndsTheJobForAll) {
  Cluster cluster;
  cluster.StartCoordinator();
  const std::string id = cluster.Submit({.name = "refused", .extra = "resources: {ranks: 2}\n"});
  std::filesystem::rename(cluster.folder() + "/train.bin", cluster.folder() + "/elsewhere.bin");
  cluster.StartWorker(0, 2);
  ASSERT_TRUE(cluster.WaitForState(id, "failed"));
  EXPECT_TRUE(absl::StrContains(cluster.Job(id).dump(), "train.bin")) << cluster.Job(id);
  EXPECT_TRUE(cluster.Trainers().empty());
}

// Two ranks that train until they are cancelled, and a trace of four of their steps.
struct TracedJob {
  explicit TracedJob(const std::string& extra) {
    cluster.StartCoordinator();
    cluster.StartWorker(0, 2);
    id = cluster.Submit({.name = "traced", .steps = 1000000, .extra = Ranks(2) + extra});
    EXPECT_TRUE(cluster.WaitForStep(id, 5));
    const std::string file = cluster.folder() + "/trace.json";
    const Ran ran = cluster.Muster({"trace", id, "--steps", "4", "--save", file, "-o", "json"});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    ranks = json::parse(ran.out, nullptr, /*allow_exceptions=*/false);
    std::ifstream in(file);
    saved = json::parse(in, nullptr, /*allow_exceptions=*/false);
  }

  Cluster cluster;
  std::string id;
  json ranks, saved;
};

TEST(Ranks, ATraceShowsReductionsBehindTheBackward) {
  TracedJob traced("strategy: {kind: ddp, bucket_mib: 0.01}\n");
  auto& [cluster, id, ranks, trace] = traced;
  ASSERT_EQ(ranks.size(), 2u);
  for (const json& rank : ranks) {
    double sum = 0, compute = 0;
    for (const json& row : rank["rows"]) {
      sum += row["milliseconds"].get<double>();
      if (row["what"] == "Forward" || row["what"] == "Backward") compute += row["milliseconds"].get<double>();
    }
    EXPECT_NEAR(sum, rank["milliseconds"].get<double>(), 0.01) << rank;
    EXPECT_GT(compute, 0) << rank;
    EXPECT_GT(rank["collectives_milliseconds"].get<double>(), 0) << rank;
    EXPECT_GT(rank["hidden_milliseconds"].get<double>(), 0) << "nothing overlaps: " << rank;
  }
  EXPECT_GT(trace["traceEvents"].size(), 100u);

  EXPECT_EQ(cluster.Muster({"trace", id, "--ranks", "5"}).exit_code, 2);
  EXPECT_EQ(cluster.Muster({"cancel", "-y", id}).exit_code, 0);
  ASSERT_TRUE(cluster.WaitForState(id, "cancelled"));
  const Ran late = cluster.Muster({"trace", id});
  EXPECT_NE(late.exit_code, 0);
  EXPECT_TRUE(absl::StrContains(late.err, "is cancelled, not running")) << late.err;
}

TEST(Ranks, ATraceTellsWaitingForOtherSharesFromComputing) {
  TracedJob traced("parallel: {tensor: 2}\nstrategy: {kind: single}\n");
  auto& [cluster, id, ranks, trace] = traced;
  ASSERT_EQ(ranks.size(), 2u);
  for (size_t i = 0; i < ranks.size(); ++i) {
    const json& rank = ranks[i];
    EXPECT_EQ(rank["tensor"], i);
    EXPECT_EQ(rank["stage"], 0);
    double sum = 0, exchanged = 0;
    for (const json& row : rank["rows"]) {
      sum += row["milliseconds"].get<double>();
      if (row["what"] == "Exchange") exchanged = row["milliseconds"].get<double>();
    }
    EXPECT_NEAR(sum, rank["milliseconds"].get<double>(), 0.01) << rank;
    EXPECT_GT(exchanged, 0) << rank;
    EXPECT_GE(rank["collectives_milliseconds"].get<double>(), exchanged) << rank;
  }
  std::set<std::string> names;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "M") names.insert(event["args"]["name"].get<std::string>());
  }
  EXPECT_TRUE(names.contains("exchange"));
  const std::string second = absl::StrCat("rank 1 (tensor 1) on ", ranks[1]["node"].get<std::string>());
  EXPECT_TRUE(names.contains(second)) << absl::StrJoin(names, ", ");
  const Ran text = cluster.Muster({"trace", id, "--ranks", "1"});
  EXPECT_TRUE(absl::StartsWith(text.out, second + ", steps ")) << text.out << text.err;
  EXPECT_EQ(cluster.Muster({"cancel", "-y", id}).exit_code, 0);
}

TEST(Ranks, BenchComparesNumbersOfRanks) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 2);
  // Numbers of ranks that the nodes have no slots for are skipped.
  ASSERT_TRUE(Eventually([&] { return cluster.MusterJson({"nodes"}).size() == 1; }));
  const std::string file = cluster.WriteJob(
      {.name = "compared",
       .extra = "strategy: {kind: ddp}\noptimizer: {lr_schedule: {kind: cosine, warmup_steps: 30}}\n"});
  const Ran ran = cluster.Muster({"bench", file, "--ranks", "1,2", "--steps", "5", "--warm_up", "2", "-o", "json"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const json rows = json::parse(ran.out);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["speed_up"], 1.0);
  EXPECT_FALSE(rows[0].contains("communication_share"));
  EXPECT_EQ(rows[1]["ranks"], 2);
  EXPECT_EQ(rows[1]["steps"], 5);
  EXPECT_GT(rows[1]["tokens_per_second"], 0);
  EXPECT_GE(rows[1]["communication_share"], 0);
  // A rank that cannot run reports what is wrong.
  const Ran wrong = cluster.Muster({"bench", file, "--ranks", "2", "--set", "data.tokens=/nowhere.bin"});
  EXPECT_EQ(wrong.exit_code, 1) << wrong.err;
  EXPECT_TRUE(absl::StrContains(wrong.err, "muster describe")) << wrong.err;
  // What is wrong with the last one is said before the first one runs.
  const Ran refused = cluster.Muster(
      {"bench", file, "--ranks", "2", "--strategies", "ddp,fsdp", "--set", "communication.compression.kind=int8"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_TRUE(absl::StrContains(refused.err, "communication.compression: compresses sums")) << refused.err;
  EXPECT_FALSE(absl::StrContains(refused.err, "samples a step")) << refused.err;
}

}  // namespace
}  // namespace muster::cluster
