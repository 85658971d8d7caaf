// A rank that is killed or frozen in a chosen phase of a step, and what becomes of its job: for rank_fault_test and
// bench/faults.
//
//   Cluster cluster;  // with a coordinator and workers
//   RankFaultTrial trial(cluster, {.kind = FaultKind::kFreeze, .phase = "gather", .strategy = "fsdp"}, "name");
//   ASSERT_TRUE(trial.Strike().ok());
//   const absl::StatusOr<Outcome> outcome = trial.Finish();
//
// Several trials may be under way at once. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/cluster/cluster.h"
#include "worker/rundir/rundir.h"

namespace muster::faults {

enum class FaultKind { kKill, kFreeze };

struct RankFault {
  FaultKind kind = FaultKind::kKill;
  std::string phase = "forward";  // data, forward, gather, backward, reduce, optimizer, checkpoint
  std::string strategy = "ddp";   // ddp, zero1, zero3, fsdp
  int ranks = 2;
  uint32_t victim = 1;
  uint64_t step = 10;  // not before it has finished so many
};
// "freeze rank 1 of 3 in gather, fsdp"
std::string Describe(const RankFault& fault);
// A phase that every strategy has but ddp, which gathers nothing.
bool HasPhase(const std::string& strategy, const std::string& phase);

// What the coordinator's events and the ranks' folders tell; times since the fault.
struct Outcome {
  uint64_t generations = 0;
  absl::Duration detection;  // until the coordinator wrote down that a rank is gone or hangs
  absl::Duration recovery;   // until the last rank of the next generation was spawned
  uint64_t step = 0;         // that the rank was in
  std::string weights;       // in the end
  // Job.failure
  std::string cause;
  int64_t failed_rank = -1;
  uint64_t failed_step = 0;
  std::string failed_op;
  std::string text;
};

// The job that suffers, and that the undisturbed one is compared with: a second or so.
cluster::JobOptions JobOf(const std::string& strategy, int ranks, const std::string& name);

// The folder of a rank, on whatever worker it is. NotFound: on none of them yet.
absl::StatusOr<rundir::RankDir> FindRank(const cluster::Cluster& cluster, const std::string& job, uint64_t generation,
                                         uint32_t rank);
// When its trainer was spawned.
absl::StatusOr<absl::Time> SpawnedAt(const rundir::RankDir& dir);

// Time of the first event of a job (empty: of any or of none) that is one of `kinds`, not before `after`.
std::optional<absl::Time> EventTime(cluster::Cluster& cluster, const std::string& job,
                                    const std::vector<std::string>& kinds, absl::Time after);

class RankFaultTrial {
 public:
  // Submits the job. `cluster` outlives the trial.
  RankFaultTrial(cluster::Cluster& cluster, RankFault fault, const std::string& name);

  // Waits for the phase and strikes. A busy machine may let the whole job go by unseen; then it is another job's turn.
  // DeadlineExceeded: none of a few was seen there. Unavailable: its rank does not start.
  absl::Status Strike();
  // Waits until the job has completed. DeadlineExceeded: it does not.
  absl::StatusOr<Outcome> Finish();

 private:
  void Submit(const std::string& name);
  absl::Status StrikeThisJob();
  absl::Status Freeze(const rundir::RankDir& dir, pid_t pid);

  cluster::Cluster& cluster_;
  const RankFault fault_;
  std::string name_;
  std::string job_;
  uint64_t step_ = 0;
  absl::Time struck_;
};

}  // namespace muster::faults
