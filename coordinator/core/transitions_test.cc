#include "coordinator/core/transitions.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include "coordinator/core/draw.h"
#include "coordinator/core/machines.h"

namespace muster::core {
namespace {

template <typename State, size_t N>
void ExpectEveryStateReachesAnEnd(const std::array<Move<State>, N>& moves, State start, const std::set<State>& ends) {
  std::set<State> reached = {start};
  for (size_t round = 0; round < N; ++round) {
    for (const Move<State>& m : moves) {
      if (reached.contains(m.from)) reached.insert(m.to);
    }
  }
  for (const Move<State>& m : moves) EXPECT_TRUE(reached.contains(m.from)) << m.from << " is never reached";
  std::set<State> good = ends;
  for (size_t round = 0; round < N; ++round) {
    for (const Move<State>& m : moves) {
      if (good.contains(m.to)) good.insert(m.from);
    }
  }
  for (const State s : reached) EXPECT_TRUE(good.contains(s)) << s << " cannot end";
  for (const State s : ends) EXPECT_TRUE(Terminal(moves, s));
}

TEST(Transitions, EveryStateIsReachedAndReachesAnEnd) {
  ExpectEveryStateReachesAnEnd<JobState>(kJobMoves, JOB_STATE_QUEUED,
                                         {JOB_STATE_COMPLETED, JOB_STATE_FAILED, JOB_STATE_CANCELLED});
  ExpectEveryStateReachesAnEnd<GenerationState>(kGenerationMoves, GENERATION_STATE_STARTING, {GENERATION_STATE_ENDED});
  ExpectEveryStateReachesAnEnd<RankState>(kRankMoves, RANK_STATE_STARTING, {RANK_STATE_EXITED});
  // A node has no terminal state, since it may always return: every state leads to every other.
  for (const NodeState goal : {NODE_STATE_LIVE, NODE_STATE_AWAY, NODE_STATE_LOST}) {
    std::set<NodeState> leads_there = {goal};
    for (size_t round = 0; round < kNodeMoves.size(); ++round) {
      for (const auto& m : kNodeMoves) {
        if (leads_there.contains(m.to)) leads_there.insert(m.from);
      }
    }
    EXPECT_EQ(leads_there.size(), 3u) << goal;
  }
}

TEST(Transitions, RanksGoForwardOnly) {
  for (int from = RANK_STATE_STARTING; from <= RANK_STATE_EXITED; ++from) {
    for (int to = RANK_STATE_STARTING; to <= RANK_STATE_EXITED; ++to) {
      Generation generation;
      generation.set_job("small-x7f2");
      generation.set_number(3);
      generation.add_ranks()->set_state(static_cast<RankState>(from));
      GenerationMachine machine(generation);
      const bool allowed = Allowed(kRankMoves, static_cast<RankState>(from), static_cast<RankState>(to));
      if (to != RANK_STATE_EXITED) {
        // A late report of a worker is neither a change nor an error.
        EXPECT_EQ(machine.Report(0, static_cast<RankState>(to)), allowed);
        EXPECT_EQ(machine.rank(0)->state(), allowed ? to : from);
      } else if (allowed) {
        EXPECT_FALSE(machine.Report(0, RANK_STATE_EXITED)) << "an exit needs its record";
        machine.Exit(0, {});
        EXPECT_TRUE(machine.EveryRankExited());
      } else {
        EXPECT_DEATH(machine.Exit(0, {}), "rank 0 of generation 3 of job small-x7f2 cannot go from RANK_STATE_EXITED");
      }
    }
  }
}

TEST(Transitions, NoMoveIsListedTwice) {
  std::set<std::pair<int, int>> seen;
  for (const auto& m : kJobMoves) EXPECT_TRUE(seen.insert({m.from, m.to}).second);
  seen.clear();
  for (const auto& m : kGenerationMoves) EXPECT_TRUE(seen.insert({m.from, m.to}).second);
  seen.clear();
  for (const auto& m : kRankMoves) EXPECT_TRUE(seen.insert({m.from, m.to}).second);
  seen.clear();
  for (const auto& m : kNodeMoves) EXPECT_TRUE(seen.insert({m.from, m.to}).second);
}

// Calls every method of a machine in every state: it moves exactly where the table allows, and aborts elsewhere.
TEST(Transitions, JobMachineObeysItsTableFromEveryState) {
  struct Verb {
    JobState to;
    std::function<void(JobMachine&)> act;
    bool stays = false;  // allowed in `to` itself: the intent changes
  };
  const Now now;
  const std::vector<Verb> verbs = {
      {JOB_STATE_STARTING, [](JobMachine& m) { m.Start(1); }},
      {JOB_STATE_RUNNING, [&](JobMachine& m) { m.Run(now); }},
      {JOB_STATE_STOPPING, [](JobMachine& m) { m.Stop(STOP_INTENT_CANCEL); }, true},
      {JOB_STATE_QUEUED, [](JobMachine& m) { m.Queue(); }},
      {JOB_STATE_PAUSED, [](JobMachine& m) { m.Pause(); }},
      {JOB_STATE_COMPLETED, [&](JobMachine& m) { m.Complete(now); }},
      {JOB_STATE_FAILED, [&](JobMachine& m) { m.Fail(now); }},
      {JOB_STATE_CANCELLED, [&](JobMachine& m) { m.Cancel(now); }},
  };
  for (int from = JOB_STATE_QUEUED; from <= JOB_STATE_CANCELLED; ++from) {
    for (const Verb& verb : verbs) {
      Job job;
      job.set_id("small-x7f2");
      job.set_state(static_cast<JobState>(from));
      JobMachine machine(job);
      const bool allowed = Allowed(kJobMoves, static_cast<JobState>(from), verb.to) || (verb.stays && from == verb.to);
      if (allowed) {
        verb.act(machine);
        EXPECT_EQ(machine.state(), verb.to);
      } else {
        EXPECT_DEATH(verb.act(machine), "job small-x7f2 cannot go from JOB_STATE_[A-Z]+ to JOB_STATE_")
            << from << " to " << verb.to;
      }
    }
  }
}

TEST(Transitions, GenerationAndNodeMachinesObeyTheirTables) {
  const Now now;
  for (int from = GENERATION_STATE_STARTING; from <= GENERATION_STATE_ENDED; ++from) {
    Generation generation;
    generation.set_job("small-x7f2");
    generation.set_number(3);
    generation.set_state(static_cast<GenerationState>(from));
    const auto allowed = [&](GenerationState to) {
      return Allowed(kGenerationMoves, static_cast<GenerationState>(from), to);
    };
    GenerationMachine run(generation), stop(generation), end(generation);
    if (allowed(GENERATION_STATE_RUNNING))
      run.Run();
    else
      EXPECT_DEATH(run.Run(), "generation 3 of job small-x7f2 cannot go");
    if (allowed(GENERATION_STATE_STOPPING) || from == GENERATION_STATE_STOPPING) {
      stop.Stop(END_REASON_CANCELLED);
    } else {
      EXPECT_DEATH(stop.Stop(END_REASON_CANCELLED), "cannot go");
    }
    if (allowed(GENERATION_STATE_ENDED))
      end.End(END_REASON_LOST, now);
    else
      EXPECT_DEATH(end.End(END_REASON_LOST, now), "cannot go");
  }
  for (int from = NODE_STATE_LIVE; from <= NODE_STATE_LOST; ++from) {
    Node node;
    node.set_id("node-a");
    node.set_state(static_cast<NodeState>(from));
    const auto allowed = [&](NodeState to) { return Allowed(kNodeMoves, static_cast<NodeState>(from), to); };
    NodeMachine back(node), away(node), lost(node);
    back.Return(now);
    EXPECT_EQ(back.state(), NODE_STATE_LIVE);
    if (allowed(NODE_STATE_AWAY))
      away.GoAway(now);
    else
      EXPECT_DEATH(away.GoAway(now), "node node-a cannot go from NODE_STATE_");
    if (allowed(NODE_STATE_LOST))
      lost.Lose(now);
    else
      EXPECT_DEATH(lost.Lose(now), "cannot go");
  }
}

TEST(Transitions, BrokenInvariantsNameTheObject) {
  Job job;
  job.set_id("small-x7f2");
  job.set_state(JOB_STATE_QUEUED);
  JobMachine machine(job);
  machine.fields().set_state(JOB_STATE_RUNNING);
  EXPECT_DEATH(machine.record(), "job small-x7f2 is JOB_STATE_QUEUED, but its record was set to JOB_STATE_RUNNING");
  Generation generation;
  generation.set_job("small-x7f2");
  generation.set_number(3);
  generation.add_ranks();
  EXPECT_DEATH(GenerationMachine(generation).Finish(1), "generation 3 of job small-x7f2 has 1 ranks, and no rank 1");
}

TEST(Transitions, TheDocumentMatchesTheTables) {
  std::ifstream in("docs/states.md");
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_EQ(text.str(), DrawStates()) << "bazel run //coordinator/core:draw_states > docs/states.md";
}

}  // namespace
}  // namespace muster::core
