#include "coordinator/core/machines.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "common/proto_time.h"
#include "coordinator/core/transitions.h"

namespace muster::core {
namespace {

template <typename State, size_t N>
void CheckMove(const std::array<Move<State>, N>& moves, State from, State to, const char* what) {
  if (Allowed(moves, from, to)) return;
  std::fprintf(stderr, "bug: %s cannot go from state %d to %d\n", what, static_cast<int>(from), static_cast<int>(to));
  std::abort();
}

}  // namespace

void JobMachine::Transition(JobState to) {
  CheckMove(kJobMoves, state_, to, "a job");
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
  CheckMove(kGenerationMoves, record_.state(), to, "a generation");
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
  CheckMove(kRankMoves, rank.state(), to, "a rank");
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

bool GenerationMachine::Report(uint32_t rank, RankState state) {
  RankPlacement& placement = *record_.mutable_ranks(static_cast<int>(rank));
  if (state == RANK_STATE_EXITED || !Allowed(kRankMoves, placement.state(), state)) return false;
  TransitionRank(placement, state);
  return true;
}

void GenerationMachine::Exit(uint32_t rank, RankExit exit) {
  RankPlacement& placement = *record_.mutable_ranks(static_cast<int>(rank));
  TransitionRank(placement, RANK_STATE_EXITED);
  *placement.mutable_exit() = std::move(exit);
}

bool GenerationMachine::Finish(uint32_t rank) {
  RankPlacement& placement = *record_.mutable_ranks(static_cast<int>(rank));
  if (placement.finished()) return false;
  placement.set_finished(true);
  return true;
}

bool GenerationMachine::Resume(uint64_t step) {
  if (record_.resumed_step() == step) return false;
  record_.set_resumed_step(step);
  return true;
}

void NodeMachine::Transition(NodeState to, Now now) {
  CheckMove(kNodeMoves, state_, to, "a node");
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
