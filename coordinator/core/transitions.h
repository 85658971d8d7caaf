// The state machines as data: the complete lists of allowed moves. Tested exhaustively; draw_states draws
// docs/states.md from these constants.
#pragma once

#include <array>
#include <cstddef>

#include "proto/job.pb.h"

namespace muster::core {

template <typename State>
struct Move {
  State from, to;
  const char* when;  // the label in docs/states.md
};

inline constexpr std::array kJobMoves = {
    Move<JobState>{JOB_STATE_QUEUED, JOB_STATE_STARTING, "all ranks placed"},
    Move<JobState>{JOB_STATE_QUEUED, JOB_STATE_PAUSED, "pause"},
    Move<JobState>{JOB_STATE_QUEUED, JOB_STATE_CANCELLED, "cancel"},
    Move<JobState>{JOB_STATE_QUEUED, JOB_STATE_FAILED, "cannot be laid out, or no time left"},
    Move<JobState>{JOB_STATE_STARTING, JOB_STATE_RUNNING, "every rank runs"},
    Move<JobState>{JOB_STATE_STARTING, JOB_STATE_STOPPING, "stop requested, or a rank failed"},
    Move<JobState>{JOB_STATE_STARTING, JOB_STATE_COMPLETED, "every rank finished"},
    Move<JobState>{JOB_STATE_STARTING, JOB_STATE_QUEUED, "all ranks gone, restarts left"},
    Move<JobState>{JOB_STATE_STARTING, JOB_STATE_FAILED, "all ranks gone, no restart left"},
    Move<JobState>{JOB_STATE_RUNNING, JOB_STATE_STOPPING, "stop requested, or a rank failed"},
    Move<JobState>{JOB_STATE_RUNNING, JOB_STATE_COMPLETED, "every rank finished"},
    Move<JobState>{JOB_STATE_RUNNING, JOB_STATE_QUEUED, "all ranks gone, restarts left"},
    Move<JobState>{JOB_STATE_RUNNING, JOB_STATE_FAILED, "all ranks gone, no restart left"},
    Move<JobState>{JOB_STATE_STOPPING, JOB_STATE_QUEUED, "stopped, to run again"},
    Move<JobState>{JOB_STATE_STOPPING, JOB_STATE_PAUSED, "stopped by pause"},
    Move<JobState>{JOB_STATE_STOPPING, JOB_STATE_CANCELLED, "stopped by cancel"},
    Move<JobState>{JOB_STATE_STOPPING, JOB_STATE_COMPLETED, "finished before it stopped"},
    Move<JobState>{JOB_STATE_STOPPING, JOB_STATE_FAILED, "no restart left, or its time limit is reached"},
    Move<JobState>{JOB_STATE_PAUSED, JOB_STATE_QUEUED, "resume"},
    Move<JobState>{JOB_STATE_PAUSED, JOB_STATE_CANCELLED, "cancel"},
};

inline constexpr std::array kGenerationMoves = {
    Move<GenerationState>{GENERATION_STATE_STARTING, GENERATION_STATE_RUNNING, "every rank runs"},
    Move<GenerationState>{GENERATION_STATE_STARTING, GENERATION_STATE_STOPPING, "stop"},
    Move<GenerationState>{GENERATION_STATE_STARTING, GENERATION_STATE_ENDED, "all ranks gone"},
    Move<GenerationState>{GENERATION_STATE_RUNNING, GENERATION_STATE_STOPPING, "stop"},
    Move<GenerationState>{GENERATION_STATE_RUNNING, GENERATION_STATE_ENDED, "all ranks gone"},
    Move<GenerationState>{GENERATION_STATE_STOPPING, GENERATION_STATE_ENDED, "all ranks gone"},
};

// Reports may be late or missing, so a rank may skip states, but it never goes back.
inline constexpr std::array kRankMoves = {
    Move<RankState>{RANK_STATE_STARTING, RANK_STATE_RUNNING, "its first step begins"},
    Move<RankState>{RANK_STATE_STARTING, RANK_STATE_STOPPING, "stop requested"},
    Move<RankState>{RANK_STATE_STARTING, RANK_STATE_EXITED, "never ran, or not reported"},
    Move<RankState>{RANK_STATE_RUNNING, RANK_STATE_STOPPING, "stop requested"},
    Move<RankState>{RANK_STATE_RUNNING, RANK_STATE_EXITED, "ended"},
    Move<RankState>{RANK_STATE_STOPPING, RANK_STATE_EXITED, "ended"},
};

inline constexpr std::array kNodeMoves = {
    Move<NodeState>{NODE_STATE_LIVE, NODE_STATE_AWAY, "its stream broke"},
    Move<NodeState>{NODE_STATE_AWAY, NODE_STATE_LIVE, "hello"},
    Move<NodeState>{NODE_STATE_AWAY, NODE_STATE_LOST, "grace period over"},
    Move<NodeState>{NODE_STATE_LOST, NODE_STATE_LIVE, "hello"},
};

template <typename State, size_t N>
constexpr bool Allowed(const std::array<Move<State>, N>& moves, State from, State to) {
  for (const Move<State>& move : moves) {
    if (move.from == from && move.to == to) return true;
  }
  return false;
}

// A state without outgoing moves.
template <typename State, size_t N>
constexpr bool Terminal(const std::array<Move<State>, N>& moves, State state) {
  for (const Move<State>& move : moves) {
    if (move.from == state) return false;
  }
  return true;
}

}  // namespace muster::core
