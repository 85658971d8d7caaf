// Runs the core in turns: handles everything that is pending, puts all of it on disk with one commit, sends the
// replies, and then executes the core's actions. It has no thread, and reads time only from its clock, so
// coordinator/simulate runs the same code as the daemon.
//
//   shell->DoTurn({[=](Turn& turn) {
//     const core::Outcome& outcome = turn.Handle(core::CancelJob{job});
//     turn.AfterCommit([=, status = outcome.status] { reply(status); });
//   }});
//
// Not thread-safe. A failed commit ends the process.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "coordinator/core/core.h"
#include "coordinator/server/audit_limit.h"
#include "coordinator/server/ledger.h"
#include "coordinator/server/plan_pool.h"
#include "coordinator/server/rendezvous.h"
#include "coordinator/server/sync_calls.h"
#include "coordinator/server/tables.h"
#include "coordinator/server/traces.h"
#include "coordinator/server/watches.h"
#include "coordinator/server/worker_sessions.h"
#include "coordinator/store/history.h"

namespace muster::server {

// Observes what happens in the loop, on its thread; must not block.
class LoopObserver {
 public:
  virtual ~LoopObserver() = default;
  virtual void TurnEnded(absl::Duration took) = 0;
  // `events` are on disk; `core` is in its state at the end of the turn.
  virtual void Committed(absl::Duration took, const std::vector<StateEvent>& events, const core::Core& core) = 0;
  virtual void Forgot(const JobId& job) = 0;
  // So many metrics and log chunks were dropped because the disk is full.
  virtual void Dropped(uint64_t items) = 0;
};

// Makes the plans that the core asks for, outside of its turns.
class CorePlans {
 public:
  virtual ~CorePlans() = default;
  // Answered by core::PlanReady in a later turn, at most once.
  virtual void Request(const core::RequestPlan& request) = 0;
  virtual void Cancel(const std::string& key) = 0;
};

struct LoopOptions {
  std::string state_dir;  // exists; the caller has locked it
  core::Options core;
  store::HistoryLimits history;
  WorkerSessions::Options workers;
  LoopObserver* observer = nullptr;  // outlives the loop
  PlanPool::Options plans;
  uint64_t audit_kept = Ledger::kAuditEntriesKept;
};

class Shell;

// One turn: everything handled in it is committed together.
class Turn {
 public:
  Now now() const { return now_; }
  // May be ahead of the disk until AfterCommit; build replies there.
  const core::Core& core() const;

  // Returns an outcome that stays valid for the rest of the turn.
  const core::Outcome& Handle(const core::Event& event);
  // Whether the outcome has anything to store or to do.
  static bool Changes(const core::Outcome& outcome);
  // Records a call that changes something, or was to: with its user, method and object, to which time and outcome are
  // added. The entry is on disk with the changes of the last Handle, or neither is. `changed`: the call did change
  // something; of those that did not, one user's are bounded (audit_limit.h).
  void Audit(AuditEntry entry, const absl::Status& status, bool changed);
  // Runs in order, once the turn's changes are on disk. May read core() and ledger(), but must not call Handle.
  void AfterCommit(std::function<void()> work) { after_commit_.push_back(std::move(work)); }

  Ledger& ledger();
  Watches& watches();
  WorkerSessions& workers();
  Rendezvous& rendezvous();
  SyncCalls& sync_calls();
  Tables& tables();
  Traces& traces();

 private:
  friend class Shell;
  Turn(Shell* shell, Now now) : shell_(shell), now_(now) {}

  Shell* const shell_;
  const Now now_;
  std::deque<core::Outcome> outcomes_;
  std::multimap<size_t, AuditEntry> audit_;  // by the number of outcomes before them
  std::deque<std::function<void()>> after_commit_;
};

class Shell {
 public:
  // Recovers the core from the ledger. `clock`, `plans` and the options' observer outlive the shell. Errors as
  // Core::Recover.
  static absl::StatusOr<std::unique_ptr<Shell>> Start(const LoopOptions& options, const Clock* clock, CorePlans* plans,
                                                      std::unique_ptr<Ledger> ledger);

  // When the next turn is due even without posted work.
  SteadyTime NextDeadline() const;
  // Some readers were not served yet: the next turn is due immediately.
  bool readers_wait() const { return readers_wait_; }
  void DoTurn(const std::deque<std::function<void(Turn&)>>& work);
  // Stores what is staged. REQUIRES: no call afterwards.
  void Finish();

 private:
  friend class Turn;
  Shell(const LoopOptions& options, const Clock* clock, CorePlans* plans, std::unique_ptr<Ledger> ledger,
        std::unique_ptr<core::Core> core);

  void Commit(Turn& turn);
  void Act(const core::Action& action);
  void FlushIfDue(SteadyTime now, bool stopping);
  void Publish();
  void PruneIfDue(SteadyTime now);

  const Clock* const clock_;
  const std::string state_dir_;
  CorePlans* const plans_;
  LoopObserver* const observer_;
  const std::unique_ptr<Ledger> ledger_;
  const std::unique_ptr<core::Core> core_;
  Watches watches_;
  WorkerSessions workers_;
  Rendezvous rendezvous_;
  SyncCalls sync_calls_;
  Tables tables_;
  Traces traces_;
  AuditLimit audit_limit_;
  std::optional<SteadyTime> staged_since_;
  SteadyTime next_prune_;
  SteadyTime next_liveness_;
  const absl::Duration liveness_interval_;
  uint64_t commit_sequence_ = 0;  // stream position before the turn's commit
  bool readers_wait_ = false;
  bool disk_full_ = false;  // the last history was dropped
};

}  // namespace muster::server
