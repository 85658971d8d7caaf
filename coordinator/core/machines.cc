#include "coordinator/core/machines.h"

#include <algorithm>

#include "common/check.h"
#include "common/proto_time.h"
#include "coordinator/core/transitions.h"

namespace muster::core {

const Job& JobMachine::record() const {
  MUSTER_CHECK(record_.state() == state_, "job ", record_.id(), " is ", JobState_Name(state_),
               ", but its record was set to ", JobState_Name(record_.state()));
  return record_;
}

void JobMachine::Transition(JobState to) {
  MUSTER_CHECK(Allowed(kJobMoves, state_, to), "job ", record_.id(), " cannot go from ", JobState_Name(state_), " to ",
               JobState_Name(to));
  record_.set_state(to);
  state_ = to;
  if (to != JOB_STATE_STOPPING) record_.set_stop_intent(STOP_INTENT_UNSPECIFIED);
}

bool JobMachine::ended() const { return Terminal(kJobMoves, state()); }

bool JobMachine::active() const {
  return state() == JOB_STATE_STARTING || state() == JOB_STATE_RUNNING || state() == JOB_STATE_STOPPING;
}

void JobMachine::Start(uint64_t generation) {
  Transition(JOB_STATE_STARTING);
  record_.set_generation(generation);
}

void JobMachine::Run(Now now) {
  Transition(JOB_STATE_RUNNING);
  if (!record_.has_started()) *record_.mutable_started() = ToProto(now.wall);
}

void JobMachine::Stop(StopIntent intent) {
  if (state() != JOB_STATE_STOPPING) Transition(JOB_STATE_STOPPING);
  record_.set_stop_intent(intent);
}

void JobMachine::Queue() { Transition(JOB_STATE_QUEUED); }

void JobMachine::Pause() { Transition(JOB_STATE_PAUSED); }

void JobMachine::End(JobState to, Now now) {
  Transition(to);
  *record_.mutable_ended() = ToProto(now.wall);
}

void JobMachine::Complete(Now now) { End(JOB_STATE_COMPLETED, now); }

void JobMachine::Fail(Now now) { End(JOB_STATE_FAILED, now); }

void JobMachine::Cancel(Now now) { End(JOB_STATE_CANCELLED, now); }

void GenerationMachine::Transition(GenerationState to) {
  MUSTER_CHECK(Allowed(kGenerationMoves, state(), to), "generation ", record_.number(), " of job ", record_.job(),
               " cannot go from ", GenerationState_Name(state()), " to ", GenerationState_Name(to));
  record_.set_state(to);
}

void GenerationMachine::Run() { Transition(GENERATION_STATE_RUNNING); }

void GenerationMachine::Stop(EndReason reason) {
  if (state() != GENERATION_STATE_STOPPING) Transition(GENERATION_STATE_STOPPING);
  record_.set_reason(reason);
}

void GenerationMachine::End(EndReason reason, Now now) {
  Transition(GENERATION_STATE_ENDED);
  record_.set_reason(reason);
  *record_.mutable_ended() = ToProto(now.wall);
}

void GenerationMachine::TransitionRank(RankPlacement& rank, RankState to) {
  MUSTER_CHECK(Allowed(kRankMoves, rank.state(), to), "rank ", rank.rank(), " of generation ", record_.number(),
               " of job ", record_.job(), " cannot go from ", RankState_Name(rank.state()), " to ", RankState_Name(to));
  rank.set_state(to);
}

const RankPlacement* GenerationMachine::rank(uint32_t number) const {
  return number < static_cast<uint32_t>(record_.ranks_size()) ? &record_.ranks(static_cast<int>(number)) : nullptr;
}

bool GenerationMachine::EveryRankRuns() const {
  return std::all_of(record_.ranks().begin(), record_.ranks().end(), [](const RankPlacement& rank) {
    return rank.state() == RANK_STATE_RUNNING || rank.exit().cause() == RankExit::COMPLETED;
  });
}

bool GenerationMachine::EveryRankExited() const {
  return std::all_of(record_.ranks().begin(), record_.ranks().end(),
                     [](const RankPlacement& rank) { return rank.state() == RANK_STATE_EXITED; });
}

bool GenerationMachine::EveryRankCompleted() const {
  return std::all_of(record_.ranks().begin(), record_.ranks().end(),
                     [](const RankPlacement& rank) { return rank.exit().cause() == RankExit::COMPLETED; });
}

RankPlacement& GenerationMachine::Placement(uint32_t rank) {
  MUSTER_CHECK(rank < static_cast<uint32_t>(record_.ranks_size()), "generation ", record_.number(), " of job ",
               record_.job(), " has ", record_.ranks_size(), " ranks, and no rank ", rank);
  return *record_.mutable_ranks(static_cast<int>(rank));
}

bool GenerationMachine::Report(uint32_t rank, RankState state) {
  RankPlacement& placement = Placement(rank);
  if (state == RANK_STATE_EXITED || !Allowed(kRankMoves, placement.state(), state)) return false;
  TransitionRank(placement, state);
  return true;
}

void GenerationMachine::Exit(uint32_t rank, RankExit exit) {
  RankPlacement& placement = Placement(rank);
  TransitionRank(placement, RANK_STATE_EXITED);
  *placement.mutable_exit() = std::move(exit);
}

bool GenerationMachine::Finish(uint32_t rank) {
  RankPlacement& placement = Placement(rank);
  if (placement.finished()) return false;
  placement.set_finished(true);
  return true;
}

bool GenerationMachine::Resume(uint64_t step) {
  if (record_.resumed_step() == step) return false;
  record_.set_resumed_step(step);
  return true;
}

const Node& NodeMachine::record() const {
  MUSTER_CHECK(record_.state() == state_, "node ", record_.id(), " is ", NodeState_Name(state_),
               ", but its record was set to ", NodeState_Name(record_.state()));
  return record_;
}

void NodeMachine::Transition(NodeState to, Now now) {
  MUSTER_CHECK(Allowed(kNodeMoves, state_, to), "node ", record_.id(), " cannot go from ", NodeState_Name(state_),
               " to ", NodeState_Name(to));
  record_.set_state(to);
  state_ = to;
  *record_.mutable_changed() = ToProto(now.wall);
}

void NodeMachine::Return(Now now) {
  if (state() != NODE_STATE_LIVE) Transition(NODE_STATE_LIVE, now);
}

void NodeMachine::GoAway(Now now) { Transition(NODE_STATE_AWAY, now); }

void NodeMachine::Lose(Now now) { Transition(NODE_STATE_LOST, now); }

}  // namespace muster::core
