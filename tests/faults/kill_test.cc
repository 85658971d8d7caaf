// kill -9 of coordinator, worker daemon and trainer, one at a time and together, while a job runs: it ends with the
// same weights as an undisturbed one.
#include <gtest/gtest.h>
#include <signal.h>

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

using nlohmann::json;

constexpr int kSteps = 400;
constexpr int kEvery = 25;

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
  Cluster cluster;
  const std::string id = StartAndWaitForStep(cluster, 60);
  const std::vector<pid_t> trainers = cluster.Trainers();
  ASSERT_EQ(trainers.size(), 1u);
  kill(trainers[0], SIGKILL);
  ExpectSameEnd(cluster, id);
  EXPECT_GE(std::stoi(cluster.Job(id)["generation"].dump().substr(cluster.Job(id)["generation"].is_string() ? 1 : 0)),
            2);
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
  EXPECT_TRUE(absl::StrContains(cluster.Job(id)["generation"].dump(), "1")) << "no restart was needed";
}

TEST(Kill, WorkerAdoptsItsRanks) {
  Cluster cluster;
  const std::string id = StartAndWaitForStep(cluster, 40);
  const std::vector<pid_t> before = cluster.Trainers();
  cluster.KillWorker(0);
  EXPECT_EQ(cluster.Trainers(), before);
  cluster.StartWorker(0, 1);
  ExpectSameEnd(cluster, id);
  EXPECT_EQ(StepsSeen(cluster, id), static_cast<size_t>(kSteps));
  EXPECT_TRUE(absl::StrContains(cluster.Job(id)["generation"].dump(), "1")) << "no restart was needed";
}

TEST(Kill, AllTogether) {
  Cluster cluster;
  const std::string id = StartAndWaitForStep(cluster, 60);
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
  cluster.KillWorker(0);
  const absl::Time killed = absl::Now();
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
