// The thread that owns the shell, and with it the core and both stores. Other threads post work, which the loop runs in
// turns (shell.h).
//
//   loop->Post([=](Turn& turn) {
//     const core::Outcome& outcome = turn.Handle(core::CancelJob{job});
//     turn.AfterCommit([=, status = outcome.status] { reply(status); });
//   });
//
// Post is thread-safe; only the loop's thread may use what Turn gives access to. A failed commit ends the
// process.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "coordinator/server/shell.h"

namespace muster::server {

class Loop {
 public:
  // Opens the stores, recovers the core and starts the thread. `clock` outlives the loop. Errors as OpenSqliteState and
  // Core::Recover.
  static absl::StatusOr<std::unique_ptr<Loop>> Start(LoopOptions options, const Clock* clock);
  // Calls Stop.
  ~Loop();

  // Makes the plans of jobs, for the core and for callers.
  PlanPool& plans() { return plans_; }

  void Post(std::function<void(Turn&)> work) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends streams, waits and workers' connections with UNAVAILABLE, and refuses new ones. Requests are still served.
  void Drain();
  // Gives up plans that are being made, runs all posted work, stores staged items and ends the thread. REQUIRES: no
  // Post afterwards.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class PooledPlans;
  Loop(const LoopOptions& options, const Clock* clock);

  void Run();
  // Waits for work or the next deadline. False: stopped, and no work is left.
  bool TakeWork(bool wait, std::deque<std::function<void(Turn&)>>& work) ABSL_LOCKS_EXCLUDED(mutex_);

  const Clock* const clock_;
  PlanPool plans_;
  const std::unique_ptr<PooledPlans> core_plans_;
  std::unique_ptr<Shell> shell_;

  Mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void(Turn&)>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace muster::server
