// Daemons and hosts that die or freeze under a job of two ranks: living ranks are kept, the job restarts elsewhere
// otherwise, and the final weights are those of an undisturbed run.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"
#include "tests/faults/daemon_fault.h"
#include "tests/faults/rank_fault.h"

namespace muster::faults {
namespace {

// The weights of an undisturbed job. One run serves all tests.
const std::string& Calm() {
  static const std::string weights = [] {
    cluster::Cluster cluster;
    cluster.StartCoordinator();
    cluster.StartWorker(0, 6);
    EXPECT_TRUE(cluster.WaitForState(cluster.Submit(JobOf("fsdp", 2, "calm")), "completed"));
    return cluster.FinalWeights("calm").second;
  }();
  return weights;
}

void AreSurvived(const std::vector<DaemonFaultKind>& kinds, const std::string& detection) {
  cluster::Cluster cluster;
  cluster.coordinator_flags = {"--detection=" + detection};
  cluster.StartCoordinator();
  for (int worker = 0; worker < 2; ++worker) cluster.StartWorker(worker, 6);
  int number = 0;
  for (const DaemonFaultKind kind : kinds) {
    SCOPED_TRACE(Name(kind));
    const absl::StatusOr<DaemonOutcome> outcome =
        StrikeDaemonOf(cluster, kind, "fsdp", 30, absl::StrCat("trial-", number++));
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->weights, Calm()) << "bit for bit";
    EXPECT_LE(outcome->recovery, kTestPatience);
    EXPECT_LE(outcome->back, kTestPatience) << "adopted or killed";
  }
}

TEST(DaemonFault, OneThatLastsIsSurvived) {
  AreSurvived({DaemonFaultKind::kFreezeWorker, DaemonFaultKind::kLoseHost}, "2s");
}

// The daemon is back before its node counts as lost, on a busy machine too.
TEST(DaemonFault, OneThatIsOverSoonCostsNothing) {
  AreSurvived({DaemonFaultKind::kKillWorker, DaemonFaultKind::kKillCoordinator}, "10s");
}

}  // namespace
}  // namespace muster::faults
