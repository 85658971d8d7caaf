// Checkpoints of real jobs: written on request, corrupted, refused by one rank's disk, and interrupted by kills in the
// writer.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kTwoRanks[] = "resources: {ranks: 2}\nstrategy: {kind: fsdp}\n";
constexpr int kEndless = 1'000'000;

// Changes a byte in the middle of a file.
void Damage(const std::string& path) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto at = static_cast<std::streamoff>(fs::file_size(path) / 2);
  file.seekg(at);
  const char was = static_cast<char>(file.get());
  file.seekp(at);
  file.put(static_cast<char>(was ^ 0x10));
}

std::string Newest(Cluster& cluster, const std::string& name) {
  const json all = cluster.MusterJson({"checkpoint", "ls", cluster.CheckpointPath(name)});
  return all.empty() ? "" : all[0]["directory"].get<std::string>();
}

TEST(Checkpoints, NowAndWhatIsDoneWithThem) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 2);
  const std::string id =
      cluster.Submit({.name = "asked", .steps = kEndless, .checkpoint_every = kEndless, .extra = kTwoRanks});
  ASSERT_TRUE(cluster.WaitForStep(id, 5));
  for (int count = 1; count <= 2; ++count) {
    const json now = cluster.MusterJson({"checkpoint", "now", id});
    const json all = cluster.MusterJson({"checkpoint", "ls", id});
    ASSERT_EQ(all.size(), static_cast<size_t>(count)) << all;
    EXPECT_EQ(fs::path(all[0]["directory"].get<std::string>()).filename().string(), now["directory"]);
    EXPECT_TRUE(all[0]["published"] && all[0]["whole"] && all[0]["on_disk"]) << all;
    EXPECT_GE(all[0]["step"], 5);
  }
  EXPECT_EQ(cluster.Muster({"cancel", "-y", id}).exit_code, 0);
  ASSERT_TRUE(cluster.WaitForState(id, "cancelled"));
  const Ran late = cluster.Muster({"checkpoint", "now", id});
  EXPECT_EQ(late.exit_code, 2);
  EXPECT_TRUE(absl::StrContains(late.err, "is cancelled, not running: it has nothing new to write")) << late.err;

  EXPECT_EQ(cluster.Muster({"checkpoint", "verify", id}).exit_code, 0);
  const std::string out = cluster.folder() + "/hf", again = cluster.folder() + "/again";
  const Ran exported = cluster.Muster({"checkpoint", "export", id, out, "--max-shard-size", "20KB"});
  EXPECT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_TRUE(fs::exists(out + "/model.safetensors.index.json"));
  const Ran imported = cluster.Muster({"checkpoint", "import", out, again});
  EXPECT_EQ(imported.exit_code, 0) << imported.err;
  EXPECT_EQ(cluster.Muster({"checkpoint", "verify", again}).exit_code, 0);
  // The same weights give the same text; and a job starts from them without naming the model.
  const auto sample = [&](const std::string& from) {
    return cluster.Muster({"sample", from, "--prompt", "The", "--tokens", "8", "--temperature", "0"}).out;
  };
  EXPECT_EQ(sample(out), sample(again));
  const std::string from = cluster.folder() + "/from.yaml";
  std::ofstream(from) << "apiVersion: muster/v1\nkind: Job\nname: from\nmodel: {family: gpt2, from: " << again
                      << "}\ndata: {tokens: train.bin}\nbatch: {sequences: 4, microbatch: 2}\nsteps: 2\n";
  const Ran started = cluster.Muster({"submit", "-f", from});
  EXPECT_EQ(started.exit_code, 0) << started.err;

  const std::string newest = Newest(cluster, "asked");
  Damage(newest + "/shard-00001.safetensors");
  const Ran verified = cluster.Muster({"checkpoint", "verify", id});
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_TRUE(absl::StrContains(verified.out, "shard-00001.safetensors")) << verified.out;
  EXPECT_TRUE(absl::StrContains(verified.out, "damaged are bytes")) << verified.out;
}

TEST(Checkpoints, AllRanksSkipADamagedOneAndLogIt) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 2);
  const std::string id =
      cluster.Submit({.name = "hurt", .steps = kEndless, .checkpoint_every = kEndless, .extra = kTwoRanks});
  ASSERT_TRUE(cluster.WaitForStep(id, 3));
  const json whole = cluster.MusterJson({"checkpoint", "now", id});
  ASSERT_EQ(cluster.Muster({"pause", id}).exit_code, 0);
  ASSERT_TRUE(cluster.WaitForState(id, "paused"));
  const std::string newest = Newest(cluster, "hurt");
  ASSERT_NE(fs::path(newest).filename().string(), whole["directory"]) << "written before it stopped";
  // Only rank 1 reads this file.
  Damage(newest + "/shard-00001.safetensors");
  ASSERT_EQ(cluster.Muster({"resume", id}).exit_code, 0);
  const auto log = [&](const char* rank) { return cluster.Muster({"logs", id, "--rank", rank}).out; };
  for (const char* rank : {"0", "1"}) {
    EXPECT_TRUE(Eventually([&] { return absl::StrContains(log(rank), "checkpoint skipped; trying an older one"); },
                           absl::Seconds(60)))
        << log(rank);
    EXPECT_TRUE(Eventually(
        [&] {
          return absl::StrContains(log(rank), absl::StrCat("checkpoint=", cluster.CheckpointPath("hurt"), "/",
                                                           whole["directory"].get<std::string>()));
        },
        absl::Seconds(60)))
        << log(rank);
  }
  EXPECT_TRUE(absl::StrContains(log("1"), "differ from their checksum")) << log("1");
  EXPECT_TRUE(absl::StrContains(log("1"), "corrupt checkpoint skipped")) << log("1");
  EXPECT_FALSE(absl::StrContains(log("0"), "corrupt")) << "it found nothing wrong itself: " << log("0");
  const auto events = [&] { return cluster.Muster({"events", id, "--type", "checkpoint.skipped", "-o", "json"}).out; };
  EXPECT_TRUE(
      Eventually([&] { return absl::StrContains(events(), fs::path(newest).filename().string()); }, absl::Seconds(60)))
      << events();
  // Also if its step is lower than that of the damaged one.
  EXPECT_TRUE(cluster.MusterJson({"checkpoint", "now", id}).contains("directory"));
  const Ran exported = cluster.Muster({"checkpoint", "export", id, cluster.folder() + "/hf"});
  EXPECT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_EQ(cluster.Muster({"cancel", "-y", id}).exit_code, 0);
  EXPECT_TRUE(cluster.WaitForState(id, "cancelled"));
}

// Only worker 1's rank has no room for its second part.
TEST(Checkpoints, AFullDiskOfOneRankFailsTheJobAndLeavesThePreviousOne) {
  Cluster cluster;
  cluster.prefix = [](const std::string& name) {
    return name == "w1" ? std::vector<std::string>{"/usr/bin/env", "MUSTER_FAILPOINTS=checkpoint.shard.sync=ENOSPC@2"}
                        : std::vector<std::string>();
  };
  cluster.StartCoordinator();
  cluster.StartWorker(0, 1);
  cluster.StartWorker(1, 1);
  const std::string id = cluster.Submit({.name = "full",
                                         .steps = kEndless,
                                         .checkpoint_every = 10,
                                         .extra = absl::StrCat(kTwoRanks, "max_restarts: 0\n")});
  ASSERT_TRUE(cluster.WaitForState(id, "failed"));
  const std::string said = cluster.Muster({"describe", id}).out;
  EXPECT_TRUE(absl::StrContains(said, "the checkpoint of step 20 failed")) << said;
  EXPECT_TRUE(absl::StrContains(said, "no space left on the device")) << said;
  const json all = cluster.MusterJson({"checkpoint", "ls", id});
  ASSERT_EQ(all.size(), 1u) << all;
  EXPECT_EQ(all[0]["step"], 10);
  EXPECT_EQ(cluster.Muster({"checkpoint", "verify", id}).exit_code, 0);
}

// Each generation is killed before its second rename, so that each moves the job one checkpoint forward.
TEST(Checkpoints, KilledBeforeEverySecondRenameAJobStillEndsWithTheSameWeights) {
  std::string undisturbed;
  for (const char* points : {"", "MUSTER_FAILPOINTS=checkpoint.rename=kill@2"}) {
    Cluster cluster;
    cluster.prefix = [&](const std::string& name) {
      return name == "w0" && *points != '\0' ? std::vector<std::string>{"/usr/bin/env", points}
                                             : std::vector<std::string>();
    };
    cluster.StartCoordinator();
    cluster.StartWorker(0, 2);
    const std::string id = cluster.Submit({.name = "cut", .steps = 30, .checkpoint_every = 10, .extra = kTwoRanks});
    ASSERT_TRUE(cluster.WaitForState(id, "completed"));
    const auto [step, sums] = cluster.FinalWeights("cut");
    EXPECT_EQ(step, 30u);
    if (undisturbed.empty()) undisturbed = sums;
    EXPECT_EQ(sums, undisturbed);
    EXPECT_EQ(cluster.Muster({"checkpoint", "verify", id}).exit_code, 0);
  }
}

}  // namespace
}  // namespace muster::cluster
