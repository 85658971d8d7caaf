// Daemons and hosts that die or freeze under a job of two ranks: living ranks are kept, the job restarts elsewhere
// otherwise, and the final weights are those of an undisturbed run.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/cluster/cluster.h"
#include "tests/faults/daemon_fault.h"
#include "tests/faults/rank_fault.h"

namespace muster::faults {
namespace {

TEST(DaemonFault, EachIsSurvived) {
  cluster::Cluster cluster;
  cluster.coordinator_flags = {"--detection=2s"};
  cluster.StartCoordinator();
  for (int worker = 0; worker < 2; ++worker) cluster.StartWorker(worker, 6);
  ASSERT_TRUE(cluster.WaitForState(cluster.Submit(JobOf("fsdp", 2, "calm")), "completed"));
  const std::string undisturbed = cluster.FinalWeights("calm").second;
  int number = 0;
  for (const DaemonFaultKind kind : {DaemonFaultKind::kKillWorker, DaemonFaultKind::kFreezeWorker,
                                     DaemonFaultKind::kLoseHost, DaemonFaultKind::kKillCoordinator}) {
    SCOPED_TRACE(Name(kind));
    const absl::StatusOr<DaemonOutcome> outcome =
        StrikeDaemonOf(cluster, kind, "fsdp", 30, absl::StrCat("trial-", number++));
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->weights, undisturbed) << "bit for bit";
    EXPECT_LE(outcome->recovery, absl::Seconds(25));
    EXPECT_LE(outcome->back, absl::Seconds(15)) << "adopted or killed";
  }
}

}  // namespace
}  // namespace muster::faults
