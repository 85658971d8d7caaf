// The one thread that owns the shell, and with it the core and both stores. Work from other threads is done in turns
// (shell.h).
//
//   loop->Post([=](Turn& turn) {
//     const core::Outcome& outcome = turn.Handle(core::CancelJob{job});
//     turn.AfterCommit([=, status = outcome.status] { reply(status); });
//   });
//
// Post is thread-safe; everything else that Turn reaches belongs to the loop's thread. A failed commit ends the
// process.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "coordinator/server/shell.h"

namespace muster::server {

class Loop {
 public:
  // Opens the stores, recovers the core and starts the thread. `clock` outlives the loop. Errors as OpenSqliteState and
  // Core::Recover.
  static absl::StatusOr<std::unique_ptr<Loop>> Start(const LoopOptions& options, const Clock* clock);
  // Stops.
  ~Loop();

  void Post(std::function<void(Turn&)> work) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends streams, waits and workers' connections with UNAVAILABLE, and those that come later. Requests are still
  // served.
  void Drain();
  // Does what was posted, stores what is staged and ends the thread. Nothing may be posted after it.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Loop(const Clock* clock, std::unique_ptr<Shell> shell) : clock_(clock), shell_(std::move(shell)) {}

  void Run();
  // Waits for work or for the next deadline. False: stopped, and nothing is left.
  bool TakeWork(bool wait, std::deque<std::function<void(Turn&)>>& work) ABSL_LOCKS_EXCLUDED(mutex_);

  const Clock* const clock_;
  const std::unique_ptr<Shell> shell_;

  // The standard ones, which the thread sanitizer sees through.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void(Turn&)>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace muster::server
