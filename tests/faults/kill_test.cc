// kill -9 of coordinator, worker daemon and trainer, one at a time and together, while a job runs: it ends with the
// same weights as an undisturbed one.
#include <gtest/gtest.h>
#include <signal.h>

#include <set>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

using nlohmann::json;

constexpr int kSteps = 2000;
constexpr int kEvery = 100;
constexpr int kAttempts = 5;  // a job takes a few seconds, and on a busy machine it may end before it is struck

JobOptions TheJob() { return {.name = "same", .steps = kSteps, .checkpoint_every = kEvery}; }

// Starts both daemons and the job, and waits for that step; returns the job's id.
std::string StartAndWaitForStep(Cluster& cluster, uint64_t step, const JobOptions& job = TheJob()) {
  cluster.StartCoordinator();
  cluster.StartWorker(0, 1);
  std::string id = cluster.Submit(job);
  EXPECT_TRUE(cluster.WaitForStep(id, step));
  return id;
}

// The weights of an undisturbed job. One run serves all tests.
const std::string& Undisturbed() {
  static const std::string weights = [] {
    Cluster cluster;
    cluster.StartCoordinator();
    cluster.StartWorker(0, 1);
    const std::string id = cluster.Submit(TheJob());
    EXPECT_TRUE(cluster.WaitForState(id, "completed"));
    const auto [step, sums] = cluster.FinalWeights("same");
    EXPECT_EQ(step, kSteps);
    return sums;
  }();
  return weights;
}

void ExpectSameEnd(Cluster& cluster, const std::string& id) {
  ASSERT_TRUE(cluster.WaitForState(id, "completed"));
  const auto [step, sums] = cluster.FinalWeights("same");
  EXPECT_EQ(step, kSteps);
  EXPECT_EQ(sums, Undisturbed());
  EXPECT_TRUE(Eventually([&] { return cluster.Trainers().empty(); }, absl::Seconds(10)));
}

// The distinct steps of the job's metrics.
size_t StepsSeen(Cluster& cluster, const std::string& id) {
  std::set<std::string> steps;
  for (const json& item : json::parse(cluster.Muster({"metrics", id, "-o", "json"}).out, nullptr, false)) {
    steps.insert((item.contains("metrics") ? item["metrics"] : item)["step"].dump());
  }
  return steps.size();
}

TEST(Kill, TrainerResumesFromItsCheckpoint) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Cluster cluster;
    const std::string id = StartAndWaitForStep(cluster, kEvery + 20);
    for (const pid_t trainer : cluster.Trainers()) kill(trainer, SIGKILL);
    ASSERT_NO_FATAL_FAILURE(ExpectSameEnd(cluster, id));
    if (cluster.Generation(id) >= 2) return;
  }
  FAIL() << "each job ended before its trainer was killed";
}

TEST(Kill, CoordinatorIsNotMissed) {
  Cluster cluster;
  const std::string id = StartAndWaitForStep(cluster, 40);
  const std::vector<pid_t> before = cluster.Trainers();
  cluster.KillCoordinator();
  // The trainer continues without it, to its end or for a while.
  EXPECT_FALSE(Eventually([&] { return cluster.Trainers() != before; }, absl::Milliseconds(300)) &&
               !cluster.Trainers().empty());
  cluster.StartCoordinator();
  ExpectSameEnd(cluster, id);
  EXPECT_EQ(StepsSeen(cluster, id), static_cast<size_t>(kSteps)) << "metrics of the outage arrive afterwards";
  EXPECT_EQ(cluster.Generation(id), 1u) << "no restart was needed";
}

TEST(Kill, WorkerAdoptsItsRanks) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Cluster cluster;
    const std::string id = StartAndWaitForStep(cluster, 40);
    const std::vector<pid_t> before = cluster.Trainers();
    cluster.KillWorker(0);
    const std::vector<pid_t> after = cluster.Trainers();
    cluster.StartWorker(0, 1);
    ASSERT_NO_FATAL_FAILURE(ExpectSameEnd(cluster, id));
    EXPECT_EQ(StepsSeen(cluster, id), static_cast<size_t>(kSteps));
    EXPECT_EQ(cluster.Generation(id), 1u) << "no restart was needed";
    if (after.empty()) continue;  // the job has ended; a rank that was killed would have cost a generation
    EXPECT_EQ(after, before);
    return;
  }
  FAIL() << "each job ended before its worker was killed";
}

TEST(Kill, AllTogether) {
  Cluster cluster;
  const std::string id = StartAndWaitForStep(cluster, kEvery + 20);
  for (const pid_t trainer : cluster.Trainers()) kill(trainer, SIGKILL);
  cluster.KillWorker(0);
  cluster.KillCoordinator();
  cluster.StartCoordinator();
  cluster.StartWorker(0, 1);
  ExpectSameEnd(cluster, id);
}

TEST(Kill, RanksOfAWorkerThatNeverReturnsEnd) {
  Cluster cluster;
  cluster.coordinator_flags = {"--detection=1s", "--orphan-grace=2s"};
  const std::string id =
      StartAndWaitForStep(cluster, 5, {.name = "orphan", .steps = 1'000'000, .checkpoint_every = 100'000});
  ASSERT_EQ(cluster.Trainers().size(), 1u);
  const absl::Time killed = absl::Now();
  cluster.KillWorker(0);
  EXPECT_TRUE(Eventually([&] { return cluster.Trainers().empty(); }, absl::Seconds(30)));
  EXPECT_GE(absl::Now() - killed, absl::Seconds(1)) << "not before its deadline";
}

TEST(Kill, CoordinatorStopsCleanlyOnSigterm) {
  Cluster cluster;
  const std::string id = StartAndWaitForStep(cluster, 20);
  EXPECT_EQ(cluster.StopCoordinator(), 0);
  cluster.StartCoordinator();
  ExpectSameEnd(cluster, id);
}

}  // namespace
}  // namespace muster::cluster
