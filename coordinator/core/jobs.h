// What a job becomes when none of its generations runs: queued again, paused, completed, failed, cancelled. Private to
// coordinator/core.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "coordinator/core/entries.h"
#include "coordinator/core/projects.h"
#include "coordinator/core/records.h"
#include "coordinator/core/transaction.h"
#include "coordinator/core/wanted_plans.h"

namespace muster::core {

class Jobs {
 public:
  // All outlive it.
  Jobs(const Options* options, Records* records, Plans* plans, Projects* projects)
      : options_(options), records_(records), plans_(plans), projects_(projects) {}

  // After a restart of the coordinator.
  void Recover(JobEntry& job, Now now);

  // Why its generation stops, and what the job becomes after that.
  void ChangeIntent(JobEntry& job, StopIntent intent, const std::string& why, Transaction& transaction);
  // Decides what the job becomes after its newest generation has ended.
  void AfterGeneration(JobEntry& job, Transaction& transaction);
  // Into the queue, from which it does not start before `delay` is over.
  void Requeue(JobEntry& job, const std::string& why, absl::Duration delay, Transaction& transaction);
  // `why`: "paused by its user".
  void Pause(JobEntry& job, const std::string& why, Transaction& transaction);
  void Complete(JobEntry& job, Transaction& transaction);
  // `reason`: the cause.
  void Fail(JobEntry& job, const std::string& reason, Transaction& transaction);
  // `reason`: empty, or "cancelled while ...".
  void Cancel(JobEntry& job, const std::string& reason, Transaction& transaction);
  // Its time_limit is used up.
  void FailByTimeLimit(JobEntry& job, Transaction& transaction);

  // Whether nodes that have not refused the job have enough slots for it, also if they are busy, away or draining.
  // REQUIRES: it has a generation.
  bool OthersCouldHold(const JobEntry& job) const;

  // Jobs that have not changed for a while are to be written, or a restart of the coordinator would lose their times.
  void StoreDueTimes(Transaction& transaction) const;
  // Adds how long its generation has held its slots. To be called before it gives one back.
  void CountHeld(JobEntry& job, Transaction& transaction);
  // How long they ran and held slots, of the jobs to be written.
  void KeepTimes(Transaction& transaction);

 private:
  // `event` completes "<id> ".
  void Finish(JobEntry& job, const std::string& kind, const std::string& event, const std::string& reason,
              Transaction& transaction);
  void SpendRestart(JobEntry& job, uint64_t reached_step, Transaction& transaction);
  // What its ranks did is no fault of the nodes: the job asked for too much.
  void ForgiveNodes(const JobEntry& job, Transaction& transaction);
  // After a rank was refused in its last generation.
  void RetryElsewhere(JobEntry& job, Transaction& transaction);
  absl::Duration Backoff(const Job& job) const;
  absl::Duration StoreTimesEvery(const JobEntry& job) const;

  const Options* const options_;
  Records* const records_;
  Plans* const plans_;
  Projects* const projects_;
};

// Records that the job has durably reached `step`. True if that is new; restarts before it then no longer count.
bool AdvanceProgress(Job& job, uint64_t step);

// "running".
std::string NameOf(JobState state);

}  // namespace muster::core
