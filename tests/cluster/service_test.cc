// What a user does, with every process real: submit, queue, watch, cancel, sample, back up.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

using nlohmann::json;

constexpr int kEndless = 1'000'000;  // steps, of a job that is cancelled

// The array that a listing command prints.
std::vector<json> Items(const std::string& out) {
  const json all = json::parse(out, nullptr, false);
  EXPECT_TRUE(all.is_array()) << out;
  return all.is_array() ? all.get<std::vector<json>>() : std::vector<json>();
}

TEST(Service, TrainsAJobToItsEnd) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 1);
  const Ran ran = cluster.Muster({"submit", "-f", cluster.WriteJob({.name = "whole", .steps = 30})});
  EXPECT_EQ(ran.exit_code, 0) << ran.err << ran.out;

  const json jobs = cluster.MusterJson({"ps", "-a"});
  EXPECT_TRUE(absl::StrContains(jobs.dump(), "completed")) << jobs.dump();

  // Every step's metrics arrived, once, in order, and the loss fell.
  const std::vector<json> points = Items(cluster.Muster({"metrics", "@last", "-o", "json"}).out);
  ASSERT_EQ(points.size(), 30u);
  for (size_t i = 0; i < points.size(); ++i) {
    const json& m = points[i].contains("metrics") ? points[i]["metrics"] : points[i];
    EXPECT_EQ(Number(m["step"]), i + 1);
  }
  const auto loss = [&](size_t i) {
    return (points[i].contains("metrics") ? points[i]["metrics"] : points[i])["loss"].get<double>();
  };
  EXPECT_NEAR(loss(0), 5.5, 0.3);  // ln 256: nothing learned yet
  EXPECT_LT(loss(29), loss(0) - 0.02);

  EXPECT_EQ(cluster.FinalWeights("whole").first, 30u);
  EXPECT_TRUE(cluster.Trainers().empty());
  const Ran sample = cluster.Muster({"sample", "@last", "--prompt", "The ", "--tokens", "8", "--temperature", "0"});
  EXPECT_EQ(sample.exit_code, 0) << sample.err;
  EXPECT_GE(sample.out.size(), 8u);
}

TEST(Service, TwoJobsOnOneSlotQueueUp) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 1);
  const std::string first = cluster.Submit({.name = "first", .steps = kEndless, .checkpoint_every = kEndless});
  ASSERT_TRUE(cluster.WaitForStep(first, 1));
  const std::string second = cluster.Submit({.name = "second", .steps = 5});
  EXPECT_EQ(cluster.State(second), "queued");
  const json job = cluster.Job(second);
  EXPECT_EQ(Number(job["queue_position"]), 1u);
  EXPECT_TRUE(absl::StrContains(job["reason"].get<std::string>(), "slot")) << job["reason"];
  const Ran ps = cluster.Muster({"ps"});
  EXPECT_TRUE(absl::StrContains(ps.out, second)) << ps.out;
  EXPECT_TRUE(absl::StrContains(ps.out, job["reason"].get<std::string>())) << "ps says why:\n" << ps.out;

  cluster.Cancel(first);
  EXPECT_GT(cluster.FinalWeights("first").first, 0u) << "a cancelled job writes a checkpoint first";
  EXPECT_TRUE(cluster.WaitForState(second, "completed"));
}

TEST(Service, AWrongSpecNamesEveryErrorAndNothingIsQueued) {
  Cluster cluster;
  cluster.StartCoordinator();
  const std::string path = cluster.WriteJob({.name = "wrong", .extra = "optimizer: {lrr: 1, lr: -1}\n"});
  const Ran ran = cluster.Muster({"submit", "-d", path});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_TRUE(absl::StrContains(ran.err, "optimizer.lrr: unknown field, did you mean optimizer.lr?")) << ran.err;
  EXPECT_TRUE(absl::StrContains(
      cluster.Muster({"submit", "-d", cluster.WriteJob({.name = "low", .extra = "optimizer: {lr: -1}\n"})}).err,
      "low.yaml:"))
      << "errors of the coordinator have a place in the file too";
  EXPECT_TRUE(cluster.MusterJson({"ps", "-a"}).empty() ||
              !absl::StrContains(cluster.MusterJson({"ps", "-a"}).dump(), "\"state\""));
}

TEST(Service, NoCoordinatorIsExitThree) {
  Cluster cluster;
  const Ran ran = cluster.Muster({"ps"});
  EXPECT_EQ(ran.exit_code, 3);
  EXPECT_TRUE(absl::StrContains(ran.err, "cannot reach the coordinator")) << ran.err;
}

TEST(Service, MissingDataFailsTheJobAtOnceWithItsReason) {
  Cluster cluster;
  cluster.StartCoordinator();
  // Submitted while the file is there.
  const std::string spec = cluster.WriteJob({.name = "too-late"});
  const std::string id = cluster.Submit({.name = "lost", .extra = "max_restarts: 5\n"});
  std::filesystem::rename(cluster.folder() + "/train.bin", cluster.folder() + "/elsewhere.bin");
  cluster.StartWorker(0, 1);
  ASSERT_TRUE(cluster.WaitForState(id, "failed"));
  const json job = cluster.Job(id);
  EXPECT_EQ(Number(job["generation"]), 1u) << "another attempt would meet the same";
  EXPECT_TRUE(absl::StrContains(job["failure"]["exit"]["message"].get<std::string>(), "train.bin")) << job["failure"];
  EXPECT_TRUE(absl::StrContains(cluster.Muster({"describe", id}).out, "train.bin"));
  // With all nodes on this machine a missing file is refused at once.
  const Ran refused = cluster.Muster({"submit", "-d", spec});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_TRUE(absl::StrContains(refused.err, "data.tokens: no such file: ")) << refused.err;
}

// The machine's GEMMs and collectives are checked by the trainer that is installed. Here it first finds a broken
// device.
TEST(Service, ANodeThatFailsItsPreflightTakesRanksOnceItIsRepaired) {
  Cluster cluster;
  const std::string broken = cluster.folder() + "/broken";
  std::ofstream(broken) << "x";
  const std::string trainer = cluster.folder() + "/trainer";
  std::ofstream(trainer) << "#!/bin/sh\nif [ \"$1\" = preflight ] && [ -e " << broken
                         << " ]; then printf 'begin\\tcpu\\n'; exit 1; fi\nexec "
                         << std::filesystem::canonical("worker/trainer/muster-trainer").string() << " \"$@\"\n";
  chmod(trainer.c_str(), 0755);
  cluster.worker_flags = {"--preflight", "full", "--trainer", trainer};
  cluster.StartCoordinator();
  cluster.StartWorker(0, 1);
  EXPECT_TRUE(Eventually(
      [&] {
        return absl::StrContains(cluster.Muster({"nodes"}).out, "cpu: the process that checks it ended with code 1");
      },
      absl::Seconds(60)))
      << cluster.Muster({"nodes"}).out;
  const std::string id = cluster.Submit({.name = "waits", .steps = 5});
  EXPECT_EQ(cluster.State(id), "queued");
  EXPECT_TRUE(absl::StrContains(cluster.Job(id)["reason"].get<std::string>(), "1 node is not ready"))
      << cluster.Job(id);
  std::filesystem::remove(broken);
  const std::string node = cluster.MusterJson({"nodes"}).at(0)["id"].get<std::string>();
  EXPECT_EQ(cluster.Muster({"undrain", node}).exit_code, 0);
  EXPECT_TRUE(cluster.WaitForState(id, "completed"));
  const json checks = cluster.MusterJson({"nodes"}).at(0)["preflight"]["checks"];
  EXPECT_TRUE(absl::StrContains(checks.dump(), "all-reduce over 2 threads by Gloo")) << checks;
}

TEST(Service, AWorkerThatEndsHandsItsJobOver) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 1);
  const std::string id = cluster.Submit({.name = "moved", .steps = kEndless, .checkpoint_every = kEndless});
  ASSERT_TRUE(cluster.WaitForStep(id, 20));
  EXPECT_EQ(cluster.StopWorker(0), 0);
  const uint64_t stopped = cluster.FinalWeights("moved").first;
  EXPECT_GT(stopped, 0u) << "its trainer wrote a checkpoint first";
  EXPECT_EQ(cluster.State(id), "queued");
  cluster.StartWorker(1, 1);
  ASSERT_TRUE(cluster.WaitForStep(id, stopped + 50));
  cluster.Cancel(id);
  const json job = cluster.Job(id);
  EXPECT_EQ(Number(job["generation"]), 2u) << "nothing was placed on the worker that was leaving";
  EXPECT_EQ(job.value("restarts", 0), 0) << "that was no fault of the job's";
}

// On an idle machine within ten seconds; here the time only bounds a hang.
TEST(Service, TheFirstStepComesSoonAfterTheStart) {
  Cluster cluster;
  const absl::Time begin = absl::Now();
  cluster.StartCoordinator();
  cluster.StartWorker(0, 1);
  const std::string id = cluster.Submit({.name = "prompt", .steps = 2000, .checkpoint_every = 2000});
  ASSERT_TRUE(cluster.WaitForStep(id, 1));
  const absl::Duration took = absl::Now() - begin;
  std::printf("the first step came after %s\n", absl::FormatDuration(took).c_str());
  EXPECT_LT(took, kTestPatience);
}

TEST(Service, BackupIsAStoreThatServes) {
  Cluster cluster;
  cluster.StartCoordinator();
  const std::string id = cluster.Submit({.name = "kept"});
  const std::string copy = cluster.folder() + "/backup.db";
  const Ran ran = cluster.Muster({"backup", copy});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_NE(cluster.Muster({"backup", copy}).exit_code, 0) << "an existing file is not overwritten";
  cluster.KillCoordinator();
  std::filesystem::remove_all(cluster.folder() + "/c");
  std::filesystem::create_directories(cluster.folder() + "/c");
  std::filesystem::permissions(cluster.folder() + "/c", std::filesystem::perms::owner_all);
  std::filesystem::rename(copy, cluster.folder() + "/c/state.db");
  cluster.StartCoordinator();
  EXPECT_EQ(cluster.State(id), "queued");
}

TEST(Service, PauseFreesTheSlotAndResumeGoesOn) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 1);
  const std::string id = cluster.Submit({.name = "nap", .steps = kEndless, .checkpoint_every = kEndless});
  ASSERT_TRUE(cluster.WaitForStep(id, 20));
  EXPECT_EQ(cluster.Muster({"pause", id}).exit_code, 0);
  ASSERT_TRUE(cluster.WaitForState(id, "paused"));
  EXPECT_TRUE(cluster.Trainers().empty());
  EXPECT_EQ(cluster.Muster({"resume", id}).exit_code, 0);
  ASSERT_TRUE(Eventually([&] { return cluster.Generation(id) == 2; }));
  const uint64_t paused = Number(cluster.MusterJson({"describe", id})["generations"][0]["resume_from"]["step"]);
  EXPECT_GE(paused, 20u);
  ASSERT_TRUE(cluster.WaitForStep(id, paused + 500));
  cluster.Cancel(id);
  // No step was lost or repeated: the pause wrote a checkpoint.
  const std::vector<uint64_t> steps = cluster.Steps(id);
  EXPECT_GE(steps.size(), paused + 500);
  for (size_t i = 0; i < steps.size(); ++i) ASSERT_EQ(steps[i], i + 1);
}

}  // namespace
}  // namespace muster::cluster
