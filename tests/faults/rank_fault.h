// A rank that is killed or frozen in a chosen phase of a step, and what happens to its job: for rank_fault_test and
// bench/faults.
//
//   Cluster cluster;  // with a coordinator and workers
//   RankFaultTrial trial(cluster, {.kind = FaultKind::kFreeze, .phase = "gather", .strategy = "fsdp"}, "name");
//   ASSERT_TRUE(trial.Strike().ok());
//   const absl::StatusOr<Outcome> outcome = trial.Finish();
//
// Several trials may run at the same time. Not thread-safe.
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
  std::string strategy = "ddp";   // ddp, zero1, zero3, fsdp; of fsdp also pipeline: in two stages, tensor: shares of
                                  // units, and levels: inside nodes and between them
  int ranks = 2;
  uint32_t victim = 1;
  uint64_t step = 10;  // not before it has finished this many
};
// "freeze rank 1 of 3 in gather, fsdp"
std::string Describe(const RankFault& fault);
// A phase of every strategy but ddp, which gathers nothing.
bool HasPhase(const std::string& strategy, const std::string& phase);

// What the coordinator's events and the ranks' folders report; times since the fault.
struct Outcome {
  uint64_t generations = 0;
  uint64_t other_faults = 0;  // each may have cost a generation: Cluster::LostOrHung without this one
  absl::Duration detection;   // until the coordinator recorded that a rank is gone or hangs
  absl::Duration recovery;    // until the last rank of the next generation was spawned
  uint64_t step = 0;          // the rank's step at the fault
  std::string weights;        // at the end
  // Job.failure
  std::string cause;
  int64_t failed_rank = -1;
  uint64_t failed_step = 0;
  std::string failed_op;
  std::string text;
};

// The job under test, and the undisturbed one that it is compared with: about a second each.
cluster::JobOptions JobOf(const std::string& strategy, int ranks, const std::string& name);

// The folder of a rank, on any worker. NotFound: none has it yet.
absl::StatusOr<rundir::RankDir> FindRank(const cluster::Cluster& cluster, const std::string& job, uint64_t generation,
                                         uint32_t rank);
// When the rank's trainer was spawned.
absl::StatusOr<absl::Time> SpawnedAt(const rundir::RankDir& dir);

// Time of the first event of a job (empty: of any job or of none) that is one of `kinds`, not before `after`.
std::optional<absl::Time> EventTime(cluster::Cluster& cluster, const std::string& job,
                                    const std::vector<std::string>& kinds, absl::Time after);

class RankFaultTrial {
 public:
  // Submits the job. `cluster` outlives the trial.
  RankFaultTrial(cluster::Cluster& cluster, RankFault fault, const std::string& name);

  // Waits for the phase and injects the fault. On a busy machine a whole job may pass unseen; then it tries another
  // job. DeadlineExceeded: none of a few was seen in the phase. Unavailable: its rank does not start.
  absl::Status Strike();
  // Waits until the job has completed. DeadlineExceeded: it has not.
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
