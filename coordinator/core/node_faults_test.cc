// Nodes on which ranks fail: a job goes elsewhere, and a node that fails several jobs is drained.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

using ::testing::HasSubstr;

class NodeFaults : public testing::Test {
 protected:
  // Nodes "a", "b", ... of two slots.
  void Join(int nodes) {
    for (int node = 0; node < nodes; ++node) w_.Return(Hello(std::string(1, static_cast<char>('a' + node)), 2));
  }
  std::string NodeOf(const JobId& id, int rank = 0) { return w_.Newest(id).ranks(rank).node(); }
  // Rank `number` ends as the worker reports it.
  void End(const JobId& id, uint32_t number, RankExit exit) {
    const Generation g = w_.Newest(id);
    const NodeId node(g.ranks(static_cast<int>(number)).node());
    NodeObserved event{node, Incarnation(w_.core->GetNode(node)->incarnation()), {}};
    ObservedRank& rank = *event.observed.add_ranks();
    rank.mutable_key()->set_job(id.value());
    rank.mutable_key()->set_generation(g.number());
    rank.mutable_key()->set_rank(number);
    rank.set_state(RANK_STATE_EXITED);
    *rank.mutable_exit() = std::move(exit);
    w_.Do(event);
  }
  static RankExit Refusal(const std::string& message, bool of_node = true) {
    RankExit exit;
    exit.set_cause(RankExit::REFUSED);
    exit.set_of_node(of_node);
    exit.set_message(message);
    return exit;
  }
  static RankExit Killed(int signal) {
    RankExit exit;
    exit.set_cause(RankExit::FAILED);
    exit.set_signal(signal);
    exit.set_message(absl::StrCat("rank 0 was killed by signal ", signal));
    return exit;
  }
  int64_t CountOf(const std::string& kind) const { return std::count(w_.events.begin(), w_.events.end(), kind); }
  Node At(const std::string& node) { return *w_.core->GetNode(NodeId(node)); }

  World w_{AnyWorld()};
};

TEST_F(NodeFaults, AJobThatANodeRefusesRunsElsewhere) {
  Join(2);
  const JobId id = w_.Submit(Spec("j"));
  ASSERT_EQ(NodeOf(id), "a");
  End(id, 0, Refusal("no such file: /data/train.bin"));
  ASSERT_EQ(w_.State(id), JOB_STATE_STARTING) << w_.Get(id).reason();
  EXPECT_EQ(NodeOf(id), "b");
  EXPECT_EQ(w_.Get(id).restarts(), 0u) << "it was not the job's fault";
  ASSERT_EQ(w_.Get(id).refused_by_size(), 1);
  EXPECT_EQ(w_.Get(id).refused_by(0).node(), "a");
  EXPECT_TRUE(absl::StrContains(w_.Get(id).failure().hint(), "other nodes are tried")) << w_.Get(id).failure().hint();
  // Also when it fails otherwise there, and after a restart of the coordinator.
  w_.Restart();
  w_.Return(Hello("a", 2, "i2"));
  w_.Do(NodeConnected{Hello("b", 2, "i2")});
  w_.Report(id, RANK_STATE_RUNNING, RankExit::CAUSE_UNSPECIFIED, /*full=*/true);
  End(id, 0, Killed(11));
  w_.PassBackoff();
  EXPECT_EQ(NodeOf(id), "b");
}

// A rank whose collective fails, since another was killed, may be reported first.
TEST_F(NodeFaults, TheFaultIsThatOfTheRankThatTheOthersFailedFor) {
  const auto consequence = [](uint32_t of) {
    RankExit exit;
    exit.set_cause(RankExit::FAILED);
    exit.set_exit_code(1);
    exit.set_of_other_rank(true);
    exit.set_message(absl::StrCat("rank ", of, " exited with code 1: all-reduce 217 failed"));
    return exit;
  };
  Join(3);
  const auto end_all = [&](const JobId& id, std::vector<std::pair<uint32_t, RankExit>> exits) {
    w_.events.clear();
    for (auto& [rank, exit] : exits) End(id, rank, std::move(exit));
    return w_.Get(id).failure();
  };
  RankExit stopped;
  stopped.set_cause(RankExit::STOPPED);
  const auto started = [&] {
    const JobId id = w_.Submit(Gang("g", 3, 1));
    for (uint32_t rank = 0; rank < 3; ++rank) w_.ReportRank(id, rank, RANK_STATE_RUNNING);
    return id;
  };

  const JobId id = started();
  Failure failure = end_all(id, {{0, consequence(0)}, {2, Killed(9)}, {1, consequence(1)}});
  EXPECT_EQ(failure.rank(), 2u);
  EXPECT_EQ(failure.node(), NodeOf(id, 2));
  EXPECT_EQ(failure.step(), 1u);
  EXPECT_EQ(failure.exit().signal(), 9);
  EXPECT_TRUE(absl::StrContains(failure.hint(), "out of memory")) << failure.hint();
  EXPECT_EQ(std::vector<uint32_t>(failure.collateral().begin(), failure.collateral().end()),
            (std::vector<uint32_t>{0, 1}));
  EXPECT_TRUE(absl::StrContains(w_.Get(id).reason(), "was killed by signal 9")) << w_.Get(id).reason();
  EXPECT_EQ(CountOf("rank.exited"), 2) << "the first one, and the one that it failed for";

  failure = end_all(started(), {{1, consequence(1)}, {0, consequence(0)}, {2, stopped}});
  EXPECT_EQ(failure.rank(), 1u) << "none says that it failed by itself: the first one";
  EXPECT_EQ(CountOf("rank.exited"), 1);

  failure = end_all(started(), {{1, Killed(9)}, {0, Killed(11)}, {2, consequence(2)}});
  EXPECT_EQ(failure.rank(), 1u) << "which failed by itself";
}

TEST_F(NodeFaults, AJobThatTwoNodesRefuseFails) {
  Join(3);
  const JobId id = w_.Submit(Spec("j"));
  End(id, 0, Refusal("no such file: /data/a.bin"));
  End(id, 0, Refusal("no such file: /data/b.bin"));
  EXPECT_EQ(w_.State(id), JOB_STATE_FAILED);
  EXPECT_EQ(w_.Get(id).reason(), "no such file: /data/b.bin (on b); a also rejected it: no such file: /data/a.bin");
  EXPECT_EQ(w_.Get(id).failure().hint(),
            absl::StrCat("no node can run it: fix the cause above, then submit again; output of the rank: muster logs ",
                         id.value(), " --rank 0"));
  EXPECT_EQ(w_.Get(id).refused_by_size(), 2);
}

// Weeks after the first refusal another node goes bad. The job has run, so nothing that it asks for is wrong.
TEST_F(NodeFaults, ARefusalThatAJobHasOutlivedCountsNoMore) {
  Join(4);
  const JobId id = w_.Submit(Spec("j"));
  End(id, 0, Refusal("no such file: /data/a.bin"));
  ASSERT_EQ(NodeOf(id), "b");
  w_.RunAll(id);
  w_.Checkpoint(id, 10);
  End(id, 0, Killed(9));
  w_.PassBackoff();
  ASSERT_EQ(NodeOf(id), "c") << "where the job failed last is the last choice";
  End(id, 0, Refusal("no space left in /scratch"));
  ASSERT_EQ(w_.State(id), JOB_STATE_STARTING) << w_.Get(id).reason();
  const std::string last = NodeOf(id);
  EXPECT_NE(last, "a");
  EXPECT_NE(last, "c");
  End(id, 0, Refusal("no space left in /scratch"));
  EXPECT_EQ(w_.State(id), JOB_STATE_FAILED) << "two since the checkpoint";
  EXPECT_THAT(w_.Get(id).reason(), HasSubstr("; c also rejected it: "));
}

TEST_F(NodeFaults, TwoNodesOfOneGenerationAreTwo) {
  Join(3);
  const JobId id = w_.Submit(Gang("g", 4));
  ASSERT_EQ(NodeOf(id, 0), "a");
  ASSERT_EQ(NodeOf(id, 2), "b");
  End(id, 0, Refusal("no such file: /data/a.bin"));
  End(id, 2, Refusal("no such file: /data/a.bin"));
  for (const uint32_t rank : {1u, 3u}) w_.ReportRank(id, rank, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w_.State(id), JOB_STATE_FAILED) << w_.Get(id).reason();
}

// One of three nodes does not see the checkpoint, so the ranks of the others cannot resume either. Whichever is
// reported first.
TEST_F(NodeFaults, ANodeThatKeepsTheOthersFromResumingIsAloneAtFault) {
  for (const char* name : {"a", "b", "c"}) w_.Return(Hello(name, 1));
  JobSpec spec = Gang("g", 3);
  spec.mutable_resources()->set_min_ranks(2);
  RankExit of_other;
  of_other.set_cause(RankExit::FAILED);
  of_other.set_exit_code(1);
  of_other.set_of_other_rank(true);
  of_other.set_message("another rank cannot resume");
  for (const std::vector<uint32_t>& order : std::vector<std::vector<uint32_t>>{{0, 1, 2}, {0, 2, 1}, {2, 0, 1}}) {
    const JobId id = w_.Submit(spec);
    ASSERT_EQ(NodeOf(id, 2), "c");
    for (const uint32_t rank : order) End(id, rank, rank == 2 ? Refusal("this node does not see it") : of_other);
    EXPECT_EQ(w_.State(id), JOB_STATE_STARTING) << w_.Get(id).reason();
    ASSERT_EQ(w_.Get(id).refused_by_size(), 1);
    EXPECT_EQ(w_.Get(id).refused_by(0).node(), "c");
    EXPECT_EQ(w_.Newest(id).ranks_size(), 2);
    EXPECT_EQ(w_.Get(id).restarts(), 0u);
    EXPECT_EQ(At("a").recent_faults() + At("b").recent_faults(), 0u);
    EXPECT_EQ(At("c").recent_faults(), 1u);
    w_.Do(CancelJob{id});
    w_.EndAll(id);
    w_.Do(UndrainNode{NodeId("c")});
  }
}

TEST_F(NodeFaults, WhereThereIsNoOtherNodeTheJobFails) {
  Join(2);
  const JobId alone = w_.Submit(Gang("g", 4));
  End(alone, 0, Refusal("no memory"));
  for (const uint32_t rank : {1u, 2u, 3u}) w_.ReportRank(alone, rank, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w_.State(alone), JOB_STATE_FAILED);
  EXPECT_EQ(w_.Get(alone).reason(), "no memory (on a); no other node can run it");
  EXPECT_EQ(w_.Get(alone).failure().hint(),
            absl::StrCat("no node can run it: fix the cause above, then submit again; output of the rank: muster logs ",
                         alone.value(), " --rank 0"));
  // What no node can have differently needs no second opinion.
  const JobId wrong = w_.Submit(Spec("j"));
  End(wrong, 0, Refusal("model.gpt2: no such size", /*of_node=*/false));
  EXPECT_EQ(w_.State(wrong), JOB_STATE_FAILED);
  EXPECT_EQ(w_.Get(wrong).refused_by_size(), 0);
}

// The other node is busy, so the job waits for it: its own node's slots go to others meanwhile.
TEST_F(NodeFaults, AJobWaitsForAnotherNodeAndHoldsBackNoOther) {
  Join(2);
  const JobId first = w_.Submit(Gang("first", 2));
  const JobId second = w_.Submit(Gang("second", 2));
  ASSERT_EQ(NodeOf(first), "a");
  ASSERT_EQ(NodeOf(second), "b");
  End(first, 0, Refusal("no such file"));
  w_.ReportRank(first, 1, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w_.State(first), JOB_STATE_QUEUED);
  EXPECT_THAT(w_.Get(first).reason(), HasSubstr("needs 2 slots, 0 of 2 free (in use: second-s2), without a, which"));
  const JobId third = w_.Submit(Gang("third", 2));
  EXPECT_EQ(w_.State(third), JOB_STATE_STARTING) << w_.Get(third).reason();
  EXPECT_EQ(NodeOf(third), "a");
  w_.Do(CancelJob{second});
  for (const uint32_t rank : {0u, 1u}) w_.ReportRank(second, rank, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(NodeOf(first), "b");
  EXPECT_EQ(w_.State(first), JOB_STATE_STARTING);
}

TEST_F(NodeFaults, WhereOnlyTheRefusingNodeIsLeftItIsAskedAgain) {
  Join(2);
  const JobId id = w_.Submit(Spec("j"));
  End(id, 0, Refusal("no such file"));
  ASSERT_EQ(NodeOf(id), "b");
  w_.Do(NodeDisconnected{NodeId("b"), Incarnation("i1")});
  w_.clock.Advance(absl::Seconds(11));
  w_.Do(Tick{});
  w_.PassBackoff();
  ASSERT_EQ(At("b").state(), NODE_STATE_LOST);
  EXPECT_EQ(w_.State(id), JOB_STATE_STARTING) << w_.Get(id).reason();
  EXPECT_EQ(NodeOf(id), "a");
  End(id, 0, Refusal("no such file"));
  EXPECT_EQ(w_.State(id), JOB_STATE_FAILED);
  EXPECT_EQ(w_.Get(id).reason(), "no such file (on a); no other node can run it");
}

TEST_F(NodeFaults, TheNodeOfTheLastFaultIsTheLastChoice) {
  Join(2);
  const JobId id = w_.Submit(Spec("j"));
  ASSERT_EQ(NodeOf(id), "a");
  End(id, 0, Killed(9));
  w_.PassBackoff();
  EXPECT_EQ(NodeOf(id), "b");
  End(id, 0, Killed(9));
  w_.Submit(Gang("other", 2));  // takes a
  w_.PassBackoff();
  EXPECT_EQ(NodeOf(id), "b") << "a choice all the same";
}

TEST_F(NodeFaults, ANodeThatFailsSeveralJobsIsDrained) {
  Join(4);
  // One job cannot do it.
  const JobId one = w_.Submit(Spec("one", 0, /*max_restarts=*/20));
  for (int i = 0; i < 8; ++i) {
    End(one, 0, Killed(11));
    w_.PassBackoff();
  }
  EXPECT_EQ(CountOf("node.drained"), 0);
  w_.clock.Advance(absl::Minutes(11));
  w_.Do(CancelJob{one});
  w_.ReportRank(one, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  for (const char* name : {"x", "y", "z"}) {
    EXPECT_FALSE(At("a").draining());
    const JobId id = w_.Submit(Spec(name));
    ASSERT_EQ(NodeOf(id), "a") << name;
    End(id, 0, Refusal(absl::StrCat("no such file: ", name)));
    EXPECT_EQ(NodeOf(id), "b");
    w_.Do(CancelJob{id});
    w_.ReportRank(id, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  }
  EXPECT_TRUE(At("a").draining());
  EXPECT_EQ(At("a").drain_reason(),
            "3 faults in 10m: z-s4, no such file: z; y-s3, no such file: y; x-s2, no such file: x");
  EXPECT_EQ(At("a").recent_faults(), 3u);
  EXPECT_EQ(CountOf("node.drained"), 1);
  w_.Restart();
  EXPECT_TRUE(At("a").draining());
  EXPECT_THAT(At("a").drain_reason(), HasSubstr("3 faults"));
  w_.Do(UndrainNode{NodeId("a")});
  EXPECT_FALSE(At("a").draining());
  EXPECT_EQ(At("a").drain_reason(), "");
  EXPECT_EQ(At("a").recent_faults(), 0u);
}

// As a user does who mistypes a path again and again.
TEST_F(NodeFaults, JobsThatTwoNodesRefuseDrainNone) {
  Join(3);
  for (int i = 0; i < 6; ++i) {
    const JobId id = w_.Submit(Spec(absl::StrCat("typo", i)));
    End(id, 0, Refusal("no such file: /dta"));
    End(id, 0, Refusal("no such file: /dta"));
    ASSERT_EQ(w_.State(id), JOB_STATE_FAILED);
  }
  EXPECT_EQ(CountOf("node.drained"), 0);
  for (const char* node : {"a", "b", "c"}) EXPECT_EQ(At(node).recent_faults(), 0u) << node;
}

// Faults that are long past do not count, nor exits that are the job's own fault.
TEST_F(NodeFaults, OnlyRecentFaultsOfTheNodeCount) {
  Join(2);
  for (int i = 0; i < 6; ++i) {
    const JobId id = w_.Submit(Spec(absl::StrCat("j", i), 0, /*max_restarts=*/0));
    RankExit exit = Killed(11);
    if (i % 2 == 0) exit.set_signal(0), exit.set_exit_code(1);
    End(id, 0, exit);
    w_.clock.Advance(absl::Minutes(4));
  }
  EXPECT_EQ(CountOf("node.drained"), 0);
}

// Nor if no tick has come to forget them.
TEST_F(NodeFaults, OldFaultsDoNotCountBesideANewOne) {
  w_.Return(Hello("a", 3));
  w_.Return(Hello("b", 3));
  std::vector<JobId> jobs;
  for (const char* name : {"x", "y", "z"}) {
    jobs.push_back(w_.Submit(Spec(name, 0, /*max_restarts=*/0)));
    ASSERT_EQ(NodeOf(jobs.back()), "a");
  }
  for (const JobId& id : jobs) {
    NodeObserved event{NodeId("a"), Incarnation("i1"), {}};
    ObservedRank& rank = *event.observed.add_ranks();
    rank.mutable_key()->set_job(id.value());
    rank.mutable_key()->set_generation(1);
    rank.set_state(RANK_STATE_EXITED);
    *rank.mutable_exit() = Killed(11);
    w_.Alone(event);
    w_.clock.Advance(absl::Minutes(6));
  }
  EXPECT_EQ(CountOf("node.drained"), 0);
  EXPECT_EQ(At("a").recent_faults(), 2u);
}

TEST_F(NodeFaults, NotAllNodesAreDrained) {
  Join(2);
  for (int i = 0; i < 8; ++i) {
    const JobId id = w_.Submit(Spec(absl::StrCat("j", i), 0, /*max_restarts=*/0));
    End(id, 0, Killed(11));
  }
  EXPECT_EQ(CountOf("node.drained"), 1);
  EXPECT_GE(CountOf("node.faulty"), 1);
  EXPECT_EQ(At("a").draining() + At("b").draining(), 1);
  World alone(AnyWorld());
  alone.Return(Hello("a", 2));
  for (int i = 0; i < 5; ++i) {
    const JobId id = alone.Submit(Spec(absl::StrCat("j", i), 0, /*max_restarts=*/0));
    alone.ReportRank(id, 0, RANK_STATE_EXITED, RankExit::SPAWN_FAILED);
  }
  EXPECT_FALSE(alone.core->GetNode(NodeId("a"))->draining()) << "no other node is left";
}

// What docs/reliability.md names, and nothing that is the job's own business.
TEST_F(NodeFaults, EveryKindOfFaultOfTheNodeCounts) {
  Join(2);
  const auto failed = [](int code, int signal, bool of_node) {
    RankExit exit;
    exit.set_cause(RankExit::FAILED);
    exit.set_exit_code(code);
    exit.set_signal(signal);
    exit.set_of_node(of_node);
    return exit;
  };
  const auto of_cause = [](RankExit::Cause cause) {
    RankExit exit;
    exit.set_cause(cause);
    return exit;
  };
  const struct {
    const char* what;
    RankExit exit;
    uint32_t faults;
  } kCases[] = {
      {"it could not be started", of_cause(RankExit::SPAWN_FAILED), 1},
      {"the machine lacks something", Refusal("no such file"), 1},
      {"the job is wrong", Refusal("no such size", /*of_node=*/false), 0},
      {"a signal", failed(0, 11, false), 1},
      {"a device error", failed(1, 0, true), 1},
      {"an exit code of the program", failed(1, 0, false), 0},
      {"a stop that no one asked for", of_cause(RankExit::STOPPED), 0},
  };
  for (const auto& [what, exit, faults] : kCases) {
    w_.Do(UndrainNode{NodeId("a")});
    const JobId id = w_.Submit(Spec("j", 0, /*max_restarts=*/0));
    ASSERT_EQ(NodeOf(id), "a") << what;
    w_.Report(id, RANK_STATE_RUNNING);
    End(id, 0, exit);
    EXPECT_EQ(At("a").recent_faults(), faults) << what;
    w_.Do(CancelJob{id});
    if (w_.State(id) != JOB_STATE_STOPPING) continue;
    w_.ReportRank(id, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  }
  // What the coordinator finds by itself.
  w_.Do(UndrainNode{NodeId("a")});
  const JobId late = w_.Submit(Spec("late"));
  ASSERT_EQ(NodeOf(late), "a");
  w_.clock.Advance(absl::Minutes(5));
  w_.Do(Tick{});
  EXPECT_EQ(At("a").recent_faults(), 1u) << "it did not begin in time";
  w_.clock.Advance(absl::Minutes(5));
  w_.Do(Tick{});
  EXPECT_EQ(w_.State(late), JOB_STATE_STOPPING);
  EXPECT_EQ(At("a").recent_faults(), 2u) << "it does not stop";
  w_.Do(UndrainNode{NodeId("a")});
  w_.Do(CancelJob{late});
  w_.ReportRank(late, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  const JobId hung = w_.Submit(Spec("hung"));
  ASSERT_EQ(NodeOf(hung), "a");
  w_.Report(hung, RANK_STATE_RUNNING);
  w_.clock.Advance(absl::Minutes(1));
  w_.RankProgress(hung, 0, 10, 0, 0, 0);
  w_.RankProgress(hung, 0, 10, 3, 2, 31);
  EXPECT_EQ(w_.Get(hung).failure().exit().cause(), RankExit::HUNG);
  EXPECT_EQ(At("a").recent_faults(), 1u) << "it made no progress";
}

// A node whose ranks fail by the thousand would otherwise grow out of its row.
TEST_F(NodeFaults, AsManyAsAreKeptOfANode) {
  Join(1);
  const JobId id = w_.Submit(Gang("g", 2, /*max_restarts=*/1000));
  for (int i = 0; i < 100; ++i) {
    End(id, 0, Killed(11));
    w_.ReportRank(id, 1, RANK_STATE_EXITED, RankExit::STOPPED);
    w_.clock.Advance(absl::Seconds(1));
    w_.Do(PauseJob{id});
    w_.Do(ResumeJob{id});
    ASSERT_EQ(w_.State(id), JOB_STATE_STARTING) << i;
  }
  EXPECT_EQ(At("a").recent_faults(), 64u);
}

// The node that refused it was the only one that its node_selector selects.
TEST_F(NodeFaults, NodesThatTheJobMayNotUseAreNoOthers) {
  for (const char* name : {"a", "b"}) {
    Node node = Hello(name, 2);
    node.add_labels(name == std::string("a") ? "rack=1" : "rack=2");
    w_.Return(node);
  }
  JobSpec spec = Spec("j");
  spec.mutable_resources()->add_node_selector("rack=1");
  const JobId id = w_.Submit(spec);
  ASSERT_EQ(NodeOf(id), "a");
  End(id, 0, Refusal("no such file"));
  EXPECT_EQ(w_.State(id), JOB_STATE_FAILED) << w_.Get(id).reason();
  EXPECT_EQ(w_.Get(id).reason(), "no such file (on a); no other node can run it");
}

// A node that is lost takes the ranks of several jobs with it, for one fault.
TEST_F(NodeFaults, ALostNodeIsOneFault) {
  Join(3);
  for (int i = 0; i < 4; ++i) w_.Submit(Gang(absl::StrCat("j", i), 1));
  for (int time = 1; time <= 3; ++time) {
    w_.Do(NodeDisconnected{NodeId("a"), Incarnation(At("a").incarnation())});
    w_.clock.Advance(absl::Seconds(11));
    w_.Do(Tick{});
    ASSERT_EQ(At("a").state(), NODE_STATE_LOST);
    EXPECT_EQ(At("a").recent_faults(), static_cast<uint32_t>(time));
    EXPECT_EQ(At("a").draining(), time == 3) << "it comes and goes";
    w_.Return(Hello("a", 2, absl::StrCat("again", time)));
  }
}

// More of them than one commit has room for.
TEST_F(NodeFaults, UndrainForgetsWhatANodeHasLackedForEveryJob) {
  w_.options.node_fault_limit = 1000;
  w_.Restart();
  w_.Return(Hello("a", 1));
  w_.Return(Hello("b", 1));
  std::vector<JobId> jobs;
  for (int i = 0; i < 150; ++i) jobs.push_back(w_.Submit(Spec(absl::StrCat("j", i))));
  // All but the second one, which runs on b, come to a and are refused.
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (i != 1) End(jobs[i], 0, Refusal("no such file"));
  }
  const auto avoiding = [&] {
    return std::count_if(jobs.begin(), jobs.end(), [&](const JobId& id) { return w_.Get(id).refused_by_size() > 0; });
  };
  ASSERT_EQ(avoiding(), 149);
  w_.Do(UndrainNode{NodeId("a")});
  w_.Pass(absl::Seconds(1));
  EXPECT_EQ(avoiding(), 0);
}

TEST_F(NodeFaults, UndrainAndResumeForgetWhatANodeHasLacked) {
  Join(2);
  const JobId id = w_.Submit(Gang("g", 2));
  const JobId other = w_.Submit(Gang("other", 2));
  End(id, 0, Refusal("no such file"));
  w_.ReportRank(id, 1, RANK_STATE_EXITED, RankExit::STOPPED);
  ASSERT_EQ(w_.State(id), JOB_STATE_QUEUED);
  w_.Do(UndrainNode{NodeId("a")});  // it was mounted
  EXPECT_EQ(w_.State(id), JOB_STATE_STARTING) << w_.Get(id).reason();
  EXPECT_EQ(NodeOf(id), "a");
  EXPECT_EQ(w_.Get(id).refused_by_size(), 0);
  End(id, 0, Refusal("no such file"));
  w_.ReportRank(id, 1, RANK_STATE_EXITED, RankExit::STOPPED);
  ASSERT_EQ(w_.State(id), JOB_STATE_QUEUED);
  w_.Do(PauseJob{id});
  w_.Do(ResumeJob{id});
  EXPECT_EQ(w_.State(id), JOB_STATE_STARTING) << w_.Get(id).reason();
  EXPECT_EQ(NodeOf(id), "a");
  EXPECT_EQ(w_.Get(id).refused_by_size(), 0);
}

}  // namespace
}  // namespace muster::core
