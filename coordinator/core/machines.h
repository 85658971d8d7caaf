// Records with their state machines: the only code that writes a `state`. A move that the table in transitions.h does
// not allow is a bug of the core, not of its input, and aborts.
#pragma once

#include <utility>

#include "common/clock.h"
#include "proto/job.pb.h"

namespace muster::core {

class JobMachine {
 public:
  explicit JobMachine(Job record) : record_(std::move(record)), state_(record_.state()) {}  // stored, or new in QUEUED
  const Job& record() const;         // aborts if other code has changed the record's state
  Job& fields() { return record_; }  // for everything except `state`, which is checked
  JobState state() const { return state_; }
  bool ended() const;
  // Has a generation whose ranks may be running.
  bool active() const;

  void Start(uint64_t generation);
  void Run(Now now);
  void Stop(StopIntent intent);
  void Queue();
  void Pause();
  void Complete(Now now);
  void Fail(Now now);
  void Cancel(Now now);

 private:
  void Transition(JobState to);
  void End(JobState to, Now now);
  Job record_;
  JobState state_;  // a copy of the record's state
};

class GenerationMachine {
 public:
  explicit GenerationMachine(Generation record) : record_(std::move(record)) {}
  const Generation& record() const { return record_; }
  GenerationState state() const { return record_.state(); }
  bool ended() const { return record_.state() == GENERATION_STATE_ENDED; }

  void Run();
  void Stop(EndReason reason);
  void End(EndReason reason, Now now);

  // Ranks are numbered from 0. Null: no such rank.
  const RankPlacement* rank(uint32_t number) const;
  bool EveryRankRuns() const;  // or has completed
  bool EveryRankExited() const;
  bool EveryRankCompleted() const;
  // Applies a worker's report. A report of an earlier state changes nothing. True if the state changed.
  // REQUIRES for these: the rank exists.
  bool Report(uint32_t rank, RankState state);
  void Exit(uint32_t rank, RankExit exit);  // REQUIRES: it has not exited
  bool Finish(uint32_t rank);               // its last step is done; true if that is new
  bool Resume(uint64_t step);               // its ranks resumed after `step`; true if that is new

 private:
  void Transition(GenerationState to);
  void TransitionRank(RankPlacement& rank, RankState to);
  RankPlacement& Placement(uint32_t rank);
  Generation record_;
};

class NodeMachine {
 public:
  explicit NodeMachine(Node record) : record_(std::move(record)), state_(record_.state()) {}
  const Node& record() const;         // aborts if other code has changed the record's state
  Node& fields() { return record_; }  // for everything except `state`, which is checked
  NodeState state() const { return state_; }

  void Return(Now now);  // also when it was not away: a new incarnation
  void GoAway(Now now);
  void Lose(Now now);

 private:
  void Transition(NodeState to, Now now);
  Node record_;
  NodeState state_;
};

}  // namespace muster::core
