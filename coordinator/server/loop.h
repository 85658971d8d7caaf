// The one thread that owns the core and both stores. Work from other threads is done in turns: everything that waits is
// handled, then one commit puts all of it on disk, then its answers go out, then the core's actions are done.
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
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "coordinator/core/core.h"
#include "coordinator/server/ledger.h"
#include "coordinator/server/rendezvous.h"
#include "coordinator/server/traces.h"
#include "coordinator/server/watches.h"
#include "coordinator/server/worker_sessions.h"
#include "coordinator/store/history.h"

namespace muster::server {

// Learns what happens in the loop, on its thread; must not block.
class LoopObserver {
 public:
  virtual ~LoopObserver() = default;
  virtual void TurnEnded(absl::Duration took) = 0;
  // `events` are on disk; `core` is as of the end of the turn.
  virtual void Committed(absl::Duration took, const std::vector<StateEvent>& events, const core::Core& core) = 0;
  virtual void Forgot(const JobId& job) = 0;
};

struct LoopOptions {
  std::string state_dir;  // exists, and is locked by the caller
  core::Options core;
  store::HistoryLimits history;
  WorkerSessions::Options workers;
  LoopObserver* observer = nullptr;  // outlives the loop
};

class Loop;

// What is handled together is committed together.
class Turn {
 public:
  Now now() const { return now_; }
  // May be ahead of the disk until AfterCommit: answers are made there.
  const core::Core& core() const;

  // The outcome stays where it is for the rest of the turn.
  const core::Outcome& Handle(const core::Event& event);
  // Runs in order, after the turn's changes are on disk. It may look at core() and ledger(), but not Handle.
  void AfterCommit(std::function<void()> work) { after_commit_.push_back(std::move(work)); }

  Ledger& ledger();
  Watches& watches();
  WorkerSessions& workers();
  Rendezvous& rendezvous();
  Traces& traces();

 private:
  friend class Loop;
  Turn(Loop* loop, Now now) : loop_(loop), now_(now) {}

  Loop* const loop_;
  const Now now_;
  std::deque<core::Outcome> outcomes_;
  std::deque<std::function<void()>> after_commit_;
};

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
  friend class Turn;
  Loop(const LoopOptions& options, const Clock* clock, std::unique_ptr<Ledger> ledger,
       std::unique_ptr<core::Core> core);

  void Run();
  // Waits for work or for the next deadline. False: stopped, and nothing is left.
  bool TakeWork(bool wait, std::deque<std::function<void(Turn&)>>& work) ABSL_LOCKS_EXCLUDED(mutex_);
  SteadyTime NextDeadline() const;
  void DoTurn(std::deque<std::function<void(Turn&)>> work);
  void Commit(Turn& turn);
  void Act(const core::Action& action);
  void FlushIfDue(SteadyTime now, bool stopping);
  void Publish();
  void PruneIfDue(SteadyTime now);
  std::vector<JobId> EndedJobs() const;

  const Clock* const clock_;
  LoopObserver* const observer_;
  const std::unique_ptr<Ledger> ledger_;
  const std::unique_ptr<core::Core> core_;
  Watches watches_;
  WorkerSessions workers_;
  Rendezvous rendezvous_;
  Traces traces_;
  std::optional<SteadyTime> staged_since_;
  SteadyTime next_prune_;
  SteadyTime next_liveness_;
  const absl::Duration liveness_interval_;
  uint64_t commit_sequence_ = 0;  // of the stream, before the turn's commit
  bool readers_wait_ = false;

  // The standard ones, which the thread sanitizer sees through.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void(Turn&)>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace muster::server
