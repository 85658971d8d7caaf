// A job's newest generation, from its start until its last rank has exited: the states of its ranks, its time-outs,
// what its ranks report, and the checkpoints that they publish. Private to coordinator/core.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/records.h"
#include "coordinator/scheduler/place.h"

namespace muster::core {

// Where a generation starts, and its layout there.
struct Placement {
  scheduler::Decision decision;
  Slots slots;  // of the decision, as they were planned for
  PlannedPtr plan;
};

class Generations {
 public:
  // All outlive it.
  Generations(const Options* options, Records* records, Plans* plans, Jobs* jobs)
      : options_(options), records_(records), plans_(plans), jobs_(jobs) {}

  // After a restart of the coordinator. REQUIRES: the newest generation has not ended.
  void Recover(JobEntry& job, Now now);
  // The plan that Recover asked for.
  void TakePlan(JobEntry& job, Transaction& transaction);

  void Start(JobEntry& job, Placement placement, Transaction& transaction);
  // The only way to stop a generation: cancel, pause, drain, failure, loss. `why` is shown to users. A user's request
  // replaces any other reason to stop; other requests do not change a generation that is already stopping.
  void Stop(JobEntry& job, EndReason reason, StopIntent intent, const std::string& why, Transaction& transaction);

  void On(const RankRecord& event, Transaction& transaction);
  void On(const RankArrived& event, Transaction& transaction);
  // A worker reported a rank that runs, and its highest step.
  void Report(JobEntry& job, uint32_t rank, RankState state, Transaction& transaction);
  void ReportStep(JobEntry& job, uint64_t step, Transaction& transaction);
  // `fault`: the generation's end reason if this exit was not requested.
  void Exit(JobEntry& job, uint32_t rank, RankExit exit, EndReason fault, Transaction& transaction);

  // At its start deadline, and at twice the deadline of its stop.
  void CheckStart(JobEntry& job, Transaction& transaction);
  void CheckStop(JobEntry& job, Transaction& transaction);

  // FailedPrecondition: as Core::CheckCurrent.
  absl::Status CheckCurrent(const RankId& rank) const;
  // As Core::Missing.
  static std::string NamesOfMissing(const JobEntry& job);

  Timeouts TimeoutsOf(const Job& job) const;
  // Between the request to stop and the kill.
  absl::Duration StopDeadline(const JobSpec& spec, EndReason reason) const;

 private:
  void RunIfAllRanksRun(JobEntry& job, Transaction& transaction);
  void End(JobEntry& job, EndReason reason, Transaction& transaction);
  static void Resume(JobEntry& job, uint64_t step, Transaction& transaction);
  void Publish(JobEntry& job, const CheckpointWritten& written, Transaction& transaction);
  // Of an exec job, whose checkpoints are its own business: an event, and progress.
  static void NoteCheckpoint(JobEntry& job, const CheckpointWritten& written, Transaction& transaction);
  // A warning; the rank runs on.
  static void NoteIdle(JobEntry& job, const RankPlacement& rank, const Idle& idle, Transaction& transaction);
  void KeepSpeed(const RankPlacement& rank, double flops_per_second, Transaction& transaction);
  // The node lacks something that the job needs.
  static void NoteRefusal(JobEntry& job, const std::string& node, const RankExit& exit, Transaction& transaction);
  static void SetCulprit(JobEntry& job, const RankPlacement& rank, const RankExit& exit, Transaction& transaction);
  static void AddToFault(JobEntry& job, const RankPlacement& rank, RankExit& exit, Transaction& transaction);

  const Options* const options_;
  Records* const records_;
  Plans* const plans_;
  Jobs* const jobs_;
};

}  // namespace muster::core
