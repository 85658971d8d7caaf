// Jobs whose parameters, gradients or optimizer state are sharded over the ranks, with every process real and Gloo
// between them: the same numbers as one rank's, checkpoints written by several ranks, and a rank that dies.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

constexpr int kSteps = 12;

std::string Options(int ranks, const std::string& strategy) {
  return absl::StrCat("resources: {ranks: ", ranks, "}\nstrategy: {", strategy, "}\n");
}

TEST(Sharded, EveryStrategyTrainsAsOneRankDoes) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 2);
  cluster.StartWorker(1, 2);
  const std::string one = cluster.Submit({.name = "one", .steps = kSteps, .sequences = 8});
  ASSERT_TRUE(cluster.WaitForState(one, "completed"));
  const std::vector<double> alone = cluster.Losses(one);
  ASSERT_EQ(alone.size(), kSteps);
  const std::vector<std::pair<int, std::string>> rows = {
      {2, "kind: zero, stage: 1"},
      {3, "kind: zero, stage: 2"},
      {2, "kind: zero, stage: 3"},
      {3, "kind: fsdp"},
      {2, "kind: fsdp, reshard: shard_grad_op"},
      {4, "kind: fsdp, reshard: hybrid, shard_ranks: 2"},
      {2, "kind: fsdp, accumulation: hold, prefetch: 2"},
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& [ranks, strategy] = rows[i];
    const std::string name = absl::StrCat("row-", i);
    const std::string id =
        cluster.Submit({.name = name, .steps = kSteps, .sequences = 8, .extra = Options(ranks, strategy)});
    ASSERT_TRUE(cluster.WaitForState(id, "completed")) << strategy;
    const std::vector<double> losses = cluster.Losses(id);
    ASSERT_EQ(losses.size(), alone.size()) << strategy;
    for (size_t s = 0; s < losses.size(); ++s) EXPECT_NEAR(losses[s], alone[s], 5e-6 * alone[s]) << strategy << s;
    EXPECT_EQ(cluster.FinalWeights(name).first, kSteps) << strategy;
  }
}

// Processes that exchange statistics inside their passes, in a group that the trainers form for it.
TEST(Sharded, SynchronizedBatchNormTrainsAsOneRankDoes) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 6);
  const std::string images = cluster.folder() + "/images.bin";
  {
    std::ofstream out(images, std::ios::binary);  // in CIFAR-10's layout
    for (int i = 0; i < 60 * 3073; ++i) out.put(static_cast<char>(i % 3073 == 0 ? i / 3073 % 10 : i * 31 % 251));
  }
  const auto losses = [&](const std::string& name, int ranks, const std::string& strategy, bool synchronized,
                          const std::string& more = "") {
    const std::string path = absl::StrCat(cluster.folder(), "/", name, ".yaml");
    std::ofstream(path) << "apiVersion: muster/v1\nkind: Job\nname: " << name
                        << "\nmodel: {family: resnet, depth: 8, width: 4, sync_batch_norm: "
                        << (synchronized ? "true" : "false") << "}\ndata: {images: " << images
                        << "}\nbatch: {sequences: 10, microbatch: " << (ranks == 1 ? 10 : 4)
                        << "}\nsteps: 5\noptimizer: {kind: sgd, lr: 0.01}\n"
                        << Options(ranks, strategy) << more;
    const Ran ran = cluster.Muster({"submit", "-d", "-o", "name", path});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    const std::string id(absl::StripAsciiWhitespace(ran.out));
    EXPECT_TRUE(cluster.WaitForState(id, "completed"));
    return cluster.Losses(id);
  };
  const std::vector<double> alone = losses("alone", 1, "kind: single", true);
  ASSERT_EQ(alone.size(), 5);
  for (const std::string strategy : {"kind: ddp", "kind: fsdp"}) {
    const std::vector<double> seen = losses(absl::StrCat("of-", strategy.substr(6)), 3, strategy, true);
    ASSERT_EQ(seen.size(), alone.size()) << strategy;
    for (size_t s = 0; s < seen.size(); ++s) EXPECT_NEAR(seen[s], alone[s], 5e-6 * alone[s]) << strategy << " " << s;
  }
  const std::vector<double> staged = losses("staged", 6, "kind: ddp", true, "parallel: {pipeline: 2}\n");
  ASSERT_EQ(staged.size(), alone.size());
  for (size_t s = 0; s < staged.size(); ++s) EXPECT_NEAR(staged[s], alone[s], 5e-6 * alone[s]) << s;
  EXPECT_GT(std::abs(losses("each", 3, "kind: ddp", false).at(0) - alone[0]), 1e-4) << "each rank by its own images";
}

// The first job's ranks measure; the second job's shares use the result.
TEST(Sharded, SharesFollowTheMeasuredSpeed) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 2);
  const std::string options = Options(2, "kind: fsdp, placement: ragged, shares: speed");
  const auto plan = [&] {
    const std::string job = cluster.WriteJob({.name = "asked", .extra = options});
    return cluster.Muster({"plan", job}).out;
  };
  EXPECT_TRUE(absl::StrContains(plan(), "none is known yet")) << plan();
  for (const char* name : {"first", "second"}) {
    const std::string id = cluster.Submit({.name = name, .steps = kSteps, .extra = options});
    ASSERT_TRUE(cluster.WaitForState(id, "completed"));
  }
  EXPECT_TRUE(absl::StrContains(plan(), " GFLOP/s")) << plan();
  const Ran wrong = cluster.Muster(
      {"validate", cluster.WriteJob({.name = "wrong", .extra = Options(2, "kind: fsdp, shares: speed")})});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_TRUE(absl::StrContains(wrong.err, "only placement: ragged gives ranks shares")) << wrong.err;
}

// A file for each shard with its checksum, which are readable as one checkpoint by one rank.
void ExpectOneCheckpoint(Cluster& cluster, const std::string& step, int shards) {
  std::string sums = "sha256sum -c manifest.sha256";
  for (int shard = 0; shard < shards; ++shard) absl::StrAppend(&sums, " shard-0000", shard, ".sha256");
  const Ran summed = cluster.Shell(sums, step);
  EXPECT_EQ(summed.exit_code, 0) << summed.out << summed.err;
  EXPECT_FALSE(std::filesystem::exists(absl::StrCat(step, "/shard-0000", shards, ".safetensors")));
  const std::string job = std::filesystem::path(step).parent_path().filename();
  const std::string out = absl::StrCat(cluster.folder(), "/exported-", job);
  const Ran exported = cluster.Muster({"export", step, out});
  EXPECT_EQ(exported.exit_code, 0) << exported.err;
  const auto loss = [&](const std::string& path) {
    const Ran ran = cluster.Muster({"eval", path, cluster.folder() + "/train.bin", "-o", "json"});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return nlohmann::json::parse(ran.out, nullptr, false).value("loss", 0.0);
  };
  EXPECT_GT(loss(step), 0);
  EXPECT_EQ(loss(step), loss(out)) << "a checkpoint of several shards and its export";
}

TEST(Sharded, ItsCheckpointIsReadByAnybody) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 4);
  // Of two shards, and of two of each of two stages, or shares of every unit.
  for (const auto& [name, shards, options] :
       {std::tuple("calm", 2, Options(2, "kind: fsdp")),
        std::tuple("staged", 4, Options(4, "kind: fsdp") + "parallel: {pipeline: 2}\n"),
        std::tuple("shared", 4, Options(4, "kind: fsdp") + "parallel: {tensor: 2, sequence_parallel: true}\n")}) {
    const std::string id = cluster.Submit({.name = name, .steps = 40, .checkpoint_every = 20, .extra = options});
    ASSERT_TRUE(cluster.WaitForState(id, "completed"));
    ExpectOneCheckpoint(cluster, cluster.CheckpointPath(name) + "/step-0000000040-g1", shards);
  }
}

struct Row {
  int ranks;
  std::string strategy, own = {};  // lines of this job
};

// Each job resumes from the one before, of another strategy and size: every step as if one rank had done all. `more`:
// lines of every job.
void ExpectEachGoesOn(const std::vector<Row>& rows, const std::string& more, double limit) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 2);
  cluster.StartWorker(1, 2);
  constexpr int kEach = 4;
  const int all = kEach * static_cast<int>(rows.size());
  const std::string one = cluster.Submit({.name = "one", .steps = all, .sequences = 8, .extra = more});
  ASSERT_TRUE(cluster.WaitForState(one, "completed"));
  const std::vector<double> alone = cluster.Losses(one);
  ASSERT_EQ(alone.size(), all);
  std::vector<double> losses;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& [ranks, strategy, own] = rows[i];
    std::vector<std::string> submit = {"submit", "-d", "-o", "name"};
    if (i > 0) {
      const std::string before = cluster.CheckpointPath(absl::StrCat("row-", i - 1));
      submit.insert(submit.end(), {"--set", absl::StrCat("checkpoint.resume_from=", before)});
    }
    submit.push_back(cluster.WriteJob({.name = absl::StrCat("row-", i),
                                       .steps = kEach * static_cast<int>(i + 1),
                                       .sequences = 8,
                                       .extra = absl::StrCat(Options(ranks, strategy), own, more)}));
    const Ran submitted = cluster.Muster(submit);
    ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
    const std::string id(absl::StripAsciiWhitespace(submitted.out));
    ASSERT_TRUE(cluster.WaitForState(id, "completed")) << strategy << cluster.Muster({"describe", id}).out;
    for (const double loss : cluster.Losses(id)) losses.push_back(loss);
    const std::string described = cluster.Muster({"describe", id}).out;
    EXPECT_TRUE(i == 0 || absl::StrContains(described, absl::StrCat("step ", kEach * i, " of "))) << described;
  }
  ASSERT_EQ(losses.size(), alone.size()) << "no step twice, none left out";
  for (size_t s = 0; s < losses.size(); ++s) EXPECT_NEAR(losses[s], alone[s], limit * alone[s]) << s;
}

TEST(Sharded, AnyStrategyAndSizeGoesOnFromAnyOther) {
  ExpectEachGoesOn({{1, "kind: single", "offload: {parameters: true}\n"},
                    {3, "kind: zero, stage: 3"},
                    {2, "kind: ddp", "activation_checkpointing: true\noffload: {activations: true}\n"},
                    {4, "kind: fsdp, reshard: hybrid, shard_ranks: 2"},
                    {2, "kind: zero, stage: 1", "offload: {optimizer: true}\n"},
                    {3, "kind: fsdp, placement: rows"},
                    {1, "kind: single"}},
                   "", 5e-6);
}

// Stages, and shares of units, on processes of their own, with shards and replicas inside.
TEST(Sharded, AnyMeshGoesOnFromAnyOther) {
  ExpectEachGoesOn({{4, "kind: fsdp", "parallel: {pipeline: 2}\n"},
                    {1, "kind: single"},
                    {4, "kind: single", "parallel: {pipeline: 4}\npipeline: {schedule: gpipe}\n"},
                    {4, "kind: fsdp", "parallel: {tensor: 2}\n"},
                    {2, "kind: fsdp"},
                    {4, "kind: single", "parallel: {pipeline: 2, tensor: 2, sequence_parallel: true}\n"},
                    {4, "kind: ddp", "parallel: {pipeline: 2}\npipeline: {schedule: interleaved, chunks: 2}\n"}},
                   "", 5e-6);
}

// The first stage trains nothing, so what compressed sums keep is only on the ranks of the second. All ranks still
// agree on each checkpoint, and a job that resumes has the bits of one that went through.
TEST(Sharded, AStageThatTrainsNothingWritesWithTheOthers) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 4);
  const std::string options = Options(4, "kind: ddp") +
                              "parallel: {pipeline: 2}\npipeline: {cut: [h.1]}\n"
                              "freeze: [\"wte*\", \"wpe*\", \"h.0.*\"]\n"
                              "communication: {compression: {kind: top_k, ratio: 0.05}}\n";
  const std::string whole =
      cluster.Submit({.name = "whole", .steps = 8, .checkpoint_every = 4, .sequences = 8, .extra = options});
  ASSERT_TRUE(cluster.WaitForState(whole, "completed")) << cluster.Muster({"describe", whole}).out;
  const std::string first = cluster.CheckpointPath("whole") + "/step-0000000004-g1";
  const Ran resumed = cluster.Muster(
      {"submit", "-d", "-o", "name", "--set", absl::StrCat("checkpoint.resume_from=", first),
       cluster.WriteJob({.name = "second", .steps = 8, .checkpoint_every = 4, .sequences = 8, .extra = options})});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  const std::string second(absl::StripAsciiWhitespace(resumed.out));
  ASSERT_TRUE(cluster.WaitForState(second, "completed")) << cluster.Muster({"describe", second}).out;
  EXPECT_EQ(cluster.Losses(second).size(), 4u);
  EXPECT_EQ(cluster.FinalWeights("second"), cluster.FinalWeights("whole"));
}

// Placement whole is the default of all of them. Its state has other shapes than the parameters.
TEST(Sharded, AdafactorGoesOnFromAnyStrategyAndSize) {
  ExpectEachGoesOn({{1, "kind: single"}, {3, "kind: zero, stage: 3"}, {2, "kind: ddp"}, {3, "kind: fsdp"}},
                   "optimizer: {kind: adafactor}\n", 5e-6);
}

// It rounds updates to bf16.
TEST(Sharded, MuonGoesOnFromAnyStrategyAndSize) {
  ExpectEachGoesOn({{2, "kind: zero, stage: 2"}, {3, "kind: fsdp"}, {1, "kind: single"}},
                   "optimizer: {kind: muon, lr: 0.02}\n", 2e-4);
}

TEST(Sharded, APauseKeepsEveryPart) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 3);
  const std::string id = cluster.Submit(
      {.name = "paused", .steps = 100000, .checkpoint_every = 0, .extra = Options(3, "kind: zero, stage: 3")});
  ASSERT_TRUE(cluster.WaitForStep(id, 10));
  EXPECT_EQ(cluster.Muster({"pause", id}).exit_code, 0);
  ASSERT_TRUE(cluster.WaitForState(id, "paused"));
  EXPECT_TRUE(cluster.Trainers().empty());
  const uint64_t kept = cluster.FinalWeights("paused").first;
  EXPECT_GE(kept, 10u);
  EXPECT_EQ(cluster.Muster({"resume", id}).exit_code, 0);
  ASSERT_TRUE(cluster.WaitForStep(id, kept + 5));
  EXPECT_EQ(cluster.Muster({"cancel", "-y", id}).exit_code, 0);
  EXPECT_TRUE(cluster.WaitForState(id, "cancelled"));
}

}  // namespace
}  // namespace muster::cluster
