// Makes plans on threads of its own, so that no one waits for one but who asked for it. The same question is answered
// once for all who ask it at the same time, and for some who ask it later. Every plan is held to a budget of work and
// memory, and a plan that no one waits for any more is given up.
//
// A plan begins in a short lane, in which it may do a small part of the work that is allowed; one that needs more moves
// to the long lane. So the plan of an ordinary job does not wait for that of a huge one. In each lane the core's
// questions come first, then the users take turns: a user's second plan waits for every other user's first.
//
//   PlanPool pool(PlanPool::Options{});
//   const uint64_t ticket = pool.Ask(question, PlanPool::User("ana"), [](const PlanPool::Answer& answer) { ... });
//   pool.Cancel(ticket);  // the caller has gone
//
// Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "coordinator/spec/plan.h"
#include "proto/spec.pb.h"
#include "strategies/budget.h"

namespace muster::server {

struct PlanQuestion {
  JobSpec spec;  // resolved
  spec::PlanFor on;
};

class PlanPool {
 public:
  using Answer = absl::StatusOr<std::shared_ptr<const spec::MadePlan>>;
  using Maker = std::function<absl::StatusOr<spec::MadePlan>(const PlanQuestion&, strategies::Budget*)>;
  using Done = std::function<void(const Answer&)>;
  // Who asks: the core, which is never refused, or a user by name.
  struct Asker {
    bool core = false;
    std::string user;
  };
  static Asker Core() { return {.core = true, .user = {}}; }
  static Asker User(std::string name) { return {.core = false, .user = std::move(name)}; }

  struct Options {
    uint32_t threads = 0;  // of the long lane; 0: half of the cores, at least one
    strategies::Budget::Limits limits;
    uint64_t short_work = 10'000'000;           // in the short lane: some 0.1 s
    size_t most_callers = 256;                  // that wait at the same time, of all users
    size_t most_kept_bytes = size_t{64} << 20;  // of answers, by their tables and texts
    Maker maker;                                // none: spec::MakePlan
  };

  explicit PlanPool(const Options& options);
  ~PlanPool();  // stops

  // Calls `done` once, on a thread of the pool and under no lock, unless the ticket is cancelled before. Errors: as
  // spec::MakePlan; before Ask returns, Unavailable when the pool has stopped, and ResourceExhausted when the user has
  // as many calls waiting as there are free places: so one user can take half of them, and leaves room for every other
  // (dynamic thresholds: Choudhury and Hahne, 1998, with alpha 1).
  uint64_t Ask(PlanQuestion question, const Asker& asker, Done done) ABSL_LOCKS_EXCLUDED(mutex_);
  // `done` is not called any more, unless it is being called just now. Nothing happens where it was called.
  void Cancel(uint64_t ticket) ABSL_LOCKS_EXCLUDED(mutex_);

  // Gives up what is under way; no one is answered any more. Ends the threads.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  struct Stats {
    uint64_t made = 0, joined = 0, kept = 0;  // plans that were made; asked for while under way; answered from memory
    uint64_t given_up = 0, refused = 0;       // no one waited; beyond the budget
    uint64_t waiting = 0;                     // now
  };
  Stats stats() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A question under way, and those who wait for its answer. What changes is guarded by the pool's mutex.
  struct Flight {
    std::string key;
    PlanQuestion question;
    std::string user;                  // who asked first
    size_t turn = 0;                   // among the plans of its user that wait in its lane
    bool for_core = false;             // also; then it goes first
    std::map<uint64_t, Done> waiting;  // by ticket
    std::atomic<bool> given_up = false;
    std::optional<Answer> known;  // from memory
  };
  using FlightPtr = std::shared_ptr<Flight>;
  enum Lane { kShort, kLong };
  struct Kept {  // an answer, for those who ask it later
    std::string key;
    Answer answer;
    size_t bytes = 0;
  };

  void Run(Lane lane);
  FlightPtr Take(Lane lane) ABSL_LOCKS_EXCLUDED(mutex_);  // null: stopped
  Answer Make(const Flight& flight, uint64_t work) const;
  void Finish(const FlightPtr& flight, const Answer& answer) ABSL_LOCKS_EXCLUDED(mutex_);
  void Push(Lane lane, const FlightPtr& flight) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MoveForward(const FlightPtr& flight) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Answer> Remembered(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Keep(const std::string& key, const Answer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;

  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<FlightPtr> queues_[2] ABSL_GUARDED_BY(mutex_);           // by lane
  std::map<std::string, FlightPtr> flights_ ABSL_GUARDED_BY(mutex_);  // by key
  struct Ticket {
    FlightPtr flight;
    Asker asker;
  };
  void Erase(uint64_t ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::map<uint64_t, Ticket> tickets_ ABSL_GUARDED_BY(mutex_);
  std::list<Kept> kept_ ABSL_GUARDED_BY(mutex_);  // the last used first
  std::map<std::string, std::list<Kept>::iterator> kept_by_key_ ABSL_GUARDED_BY(mutex_);
  size_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t callers_ ABSL_GUARDED_BY(mutex_) = 0;                        // tickets of users
  std::map<std::string, size_t> callers_of_ ABSL_GUARDED_BY(mutex_);  // by user; none is 0
  Stats stats_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace muster::server
