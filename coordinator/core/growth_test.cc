// Jobs that may run on fewer ranks than they request, and the end reasons of generations.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "coordinator/core/core.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

JobSpec Elastic(const std::string& name, uint32_t ranks, uint32_t least) {
  JobSpec spec = Gang(name, ranks);
  spec.mutable_resources()->set_min_ranks(least);
  return spec;
}

class Resize : public testing::Test {
 protected:
  void Join(const std::string& node, int slots) { w_.Do(NodeConnected{Hello(node, slots)}); }
  int Ranks(const JobId& id) { return w_.Newest(id).ranks_size(); }
  World w_{AnyWorld()};
};

TEST_F(Resize, AJobThatHasNeverRunWaitsBrieflyForAllItsRanks) {
  Join("a", 2);
  const JobId id = w_.Submit(Elastic("e", 4, 2));
  EXPECT_EQ(w_.State(id), JOB_STATE_QUEUED);
  w_.TickAfter(absl::Seconds(2));
  Join("b", 2);
  EXPECT_EQ(Ranks(id), 4) << "the slots are there now";
  const JobId next = w_.Submit(Elastic("f", 3, 1));
  w_.Do(CancelJob{id});
  Join("c", 1);
  EXPECT_EQ(w_.State(next), JOB_STATE_QUEUED);
  EXPECT_TRUE(w_.core->NextTick().has_value());
  w_.TickAfter(absl::Seconds(5));
  ASSERT_EQ(w_.State(next), JOB_STATE_STARTING);
  EXPECT_EQ(Ranks(next), 1);
}

TEST_F(Resize, FewerThanMinRanksDoNotStart) {
  Join("a", 1);
  const JobId id = w_.Submit(Elastic("e", 4, 2));
  w_.TickAfter(absl::Minutes(1));
  EXPECT_EQ(w_.State(id), JOB_STATE_QUEUED);
  EXPECT_TRUE(absl::StrContains(w_.Get(id).reason(), "needs 2 to 4 slots on cpu, the nodes have 1 in all, 1 free"))
      << w_.Get(id).reason();
  Join("b", 2);
  EXPECT_EQ(Ranks(id), 3);
}

TEST_F(Resize, ALostNodeMakesTheNextGenerationSmallerAndAReturnedOneLarger) {
  Join("a", 2);
  Join("b", 2);
  const JobId id = w_.Submit(Elastic("e", 4, 2));
  w_.RunAll(id);
  w_.Do(NodeDisconnected{NodeId("b"), Incarnation("i1")});
  w_.TickAfter(absl::Seconds(10));
  w_.EndAll(id);
  EXPECT_EQ(w_.Newest(id).reason(), END_REASON_LOST);
  w_.TickAfter(absl::Seconds(1));
  ASSERT_EQ(w_.Newest(id).number(), 2u) << "it does not wait for the node";
  EXPECT_EQ(Ranks(id), 2);
  w_.RunAll(id);
  EXPECT_TRUE(absl::StrContains(w_.Get(id).reason(), "with 2 of 4 ranks")) << w_.Get(id).reason();
  const uint64_t restarts = w_.Get(id).restarts();

  w_.Return(Hello("b", 2, "i2"));
  w_.TickAfter(absl::Minutes(4));
  EXPECT_EQ(w_.State(id), JOB_STATE_RUNNING) << "not so soon";
  w_.TickAfter(absl::Minutes(1));
  EXPECT_EQ(w_.State(id), JOB_STATE_RUNNING) << "not at the first check";
  w_.TickAfter(absl::Seconds(30));
  ASSERT_EQ(w_.State(id), JOB_STATE_STOPPING);
  EXPECT_EQ(w_.Newest(id).reason(), END_REASON_RESIZED);
  EXPECT_TRUE(w_.core->DesiredFor(NodeId("a")).ranks(0).stop().checkpoint_first());
  w_.Checkpoint(id, 50);
  w_.EndAll(id);
  ASSERT_EQ(w_.Newest(id).number(), 3u);
  EXPECT_EQ(Ranks(id), 4);
  EXPECT_EQ(w_.Newest(id).resume_from().step(), 50u);
  EXPECT_EQ(w_.Get(id).restarts(), restarts) << "no fault";
  w_.RunAll(id);
  EXPECT_FALSE(absl::StrContains(w_.Get(id).reason(), "of 4")) << w_.Get(id).reason();
  ASSERT_TRUE(w_.core->NextTick().has_value());
  EXPECT_EQ(*w_.core->NextTick() - w_.clock.Read().steady, w_.options.store_times_every) << "nothing left to check";
}

TEST_F(Resize, ANodeThatFlapsIsNotGrownOnto) {
  Join("a", 2);
  const JobId id = w_.Submit(Elastic("e", 4, 2));
  w_.TickAfter(absl::Seconds(5));
  w_.RunAll(id);
  Join("b", 2);
  w_.TickAfter(absl::Minutes(5));
  w_.Do(NodeDisconnected{NodeId("b"), Incarnation("i1")});
  w_.TickAfter(absl::Seconds(30));
  w_.Return(Hello("b", 2));
  w_.TickAfter(absl::Seconds(30));
  EXPECT_EQ(w_.State(id), JOB_STATE_RUNNING) << "it was not free for long enough";
  w_.TickAfter(absl::Seconds(30));
  EXPECT_EQ(w_.State(id), JOB_STATE_STOPPING);
}

TEST_F(Resize, QueuedJobsComeFirst) {
  Join("a", 2);
  const JobId id = w_.Submit(Elastic("e", 4, 2));
  w_.TickAfter(absl::Seconds(5));
  w_.RunAll(id);
  JobSpec low = Gang("low", 3);
  low.set_priority(-1);
  const JobId waiting = w_.Submit(low);
  const JobId hopeless = w_.Submit(Gang("hopeless", 100));
  Join("b", 2);
  w_.TickAfter(absl::Minutes(6));
  w_.TickAfter(absl::Minutes(1));
  EXPECT_EQ(w_.State(id), JOB_STATE_RUNNING) << "the two free slots are kept for the job that waits";
  w_.Do(CancelJob{waiting});
  w_.TickAfter(absl::Minutes(1));
  w_.TickAfter(absl::Minutes(1));
  EXPECT_EQ(w_.State(id), JOB_STATE_STOPPING) << "a job that can never run does not hold back others";
  EXPECT_EQ(w_.State(hopeless), JOB_STATE_QUEUED);
}

// It may come after the one that grows.
TEST_F(Resize, AJobThatComesAfterAnotherHoldsBackNone) {
  Join("a", 2);
  const JobId id = w_.Submit(Elastic("e", 4, 2));
  w_.TickAfter(absl::Seconds(5));
  w_.RunAll(id);
  JobSpec next = Gang("next", 2);
  next.add_after(id.value());
  const JobId after = w_.Submit(next);
  Join("b", 2);
  w_.TickAfter(absl::Minutes(6));
  w_.TickAfter(absl::Minutes(1));
  EXPECT_EQ(w_.State(id), JOB_STATE_STOPPING) << w_.Get(id).reason();
  EXPECT_EQ(w_.State(after), JOB_STATE_QUEUED);
}

TEST_F(Resize, GrowthIsCheckedAfterARestartOfTheCoordinatorToo) {
  Join("a", 2);
  const JobId id = w_.Submit(Elastic("e", 4, 2));
  w_.TickAfter(absl::Seconds(5));
  w_.RunAll(id);
  w_.Restart();
  w_.Do(NodeConnected{Hello("a", 2)});
  NodeObserved full{NodeId("a"), Incarnation("i1"), {}};
  full.observed.set_full(true);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ObservedRank& seen = *full.observed.add_ranks();
    seen.mutable_key()->set_job(id.value());
    seen.mutable_key()->set_generation(1);
    seen.mutable_key()->set_rank(rank);
    seen.set_state(RANK_STATE_RUNNING);
  }
  w_.Do(full);
  Join("b", 2);
  w_.TickAfter(absl::Minutes(5));
  w_.TickAfter(absl::Seconds(30));
  EXPECT_EQ(w_.State(id), JOB_STATE_STOPPING);
}

// Of the largest sizes that there are slots for, the planner decides.
TEST_F(Resize, TheLargestSizeThatThePlannerAccepts) {
  WorldOptions options = AnyWorld();
  options.planner = [any = options.planner](const JobSpec& spec, const Slots& slots) -> absl::StatusOr<Planned> {
    if (slots.ranks.size() % 2 == 1) return absl::InvalidArgumentError("strategy: an odd number of ranks");
    auto planned = any(spec, slots);
    if (slots.ranks.size() == 2) planned->unfit = Unfit{"two are too few", 1000};
    return planned;
  };
  World w(options);
  w.Do(NodeConnected{Hello("a", 5)});
  const JobId id = w.Submit(Elastic("e", 8, 2));
  w.clock.Advance(absl::Seconds(5));
  w.Do(Tick{});
  ASSERT_EQ(w.State(id), JOB_STATE_STARTING);
  EXPECT_EQ(w.Newest(id).ranks_size(), 4);
  World small(options);
  small.Do(NodeConnected{Hello("a", 3)});
  const JobId waits = small.Submit(Elastic("e", 8, 2));
  small.clock.Advance(absl::Seconds(5));
  small.Do(Tick{});
  EXPECT_EQ(small.State(waits), JOB_STATE_QUEUED) << "an error on fewer ranks fails nothing";
}

// The search for slots to grow on leaves refusals of all sizes above the one that it runs on.
TEST_F(Resize, ItStartsAgainHoweverManySizesAreKnownToBeRefused) {
  struct Case {
    uint32_t slots, group;
  };
  for (const auto& [slots, group] : {Case{24, 16}, Case{47, 32}, Case{63, 32}}) {
    WorldOptions options = AnyWorld();
    options.planner = [any = options.planner, group = group](const JobSpec& spec,
                                                             const Slots& of) -> absl::StatusOr<Planned> {
      if (of.ranks.size() % group != 0) return absl::InvalidArgumentError("strategy: not whole groups of shards");
      return any(spec, of);
    };
    World w(options);
    w.Do(NodeConnected{Hello("a", static_cast<int>(slots))});
    const JobId id = w.Submit(Elastic("e", 2 * group, group));
    w.TickAfter(absl::Seconds(5));
    w.RunAll(id);
    w.TickAfter(absl::Minutes(5));
    w.Do(PauseJob{id});
    w.EndAll(id);
    ASSERT_EQ(w.State(id), JOB_STATE_PAUSED);
    w.Do(ResumeJob{id});
    ASSERT_EQ(w.State(id), JOB_STATE_STARTING) << slots << " slots: " << w.Get(id).reason();
    EXPECT_EQ(w.Newest(id).ranks_size(), static_cast<int>(group));
  }
}

// Beside another one of two ranks.
TEST_F(Resize, AJobGrowsAsFarAsItsUsersLimitAllows) {
  for (const uint32_t limit : {4u, 5u}) {
    WorldOptions options = AnyWorld();
    options.max_running_ranks_of_user = limit;
    World w(options);
    w.Do(NodeConnected{Hello("a", 2)});
    const JobId id = w.Submit(Elastic("e", 4, 2));
    w.TickAfter(absl::Seconds(5));
    w.RunAll(id);
    w.Do(NodeConnected{Hello("b", 4)});
    w.RunAll(w.Submit(Gang("other", 2)));
    w.TickAfter(absl::Minutes(5));
    w.TickAfter(absl::Seconds(30));
    w.TickAfter(absl::Seconds(30));
    if (limit == 4) {
      EXPECT_EQ(w.State(id), JOB_STATE_RUNNING) << "it would wait for the other one";
      continue;
    }
    ASSERT_EQ(w.State(id), JOB_STATE_STOPPING);
    w.EndAll(id);
    ASSERT_EQ(w.State(id), JOB_STATE_STARTING) << w.Get(id).reason();
    EXPECT_EQ(w.Newest(id).ranks_size(), 3);
  }
}

// All seven end reasons, as the generation stores them, and whether each costs a restart.
TEST_F(Resize, TheSevenEndReasons) {
  Join("n", 2);
  std::set<EndReason> reached;
  const auto ended = [&](const JobId& id, EndReason reason, uint64_t restarts) {
    EXPECT_EQ(w_.Newest(id).state(), GENERATION_STATE_ENDED);
    EXPECT_EQ(w_.Newest(id).reason(), reason);
    EXPECT_EQ(w_.Get(id).restarts(), restarts);
    reached.insert(w_.Newest(id).reason());
    if (w_.State(id) != JOB_STATE_COMPLETED) w_.Do(CancelJob{id});
  };
  const auto start = [&] {
    const JobId id = w_.Submit(Gang("g", 1));
    w_.RunAll(id);
    return id;
  };
  JobId id = start();
  w_.Finish(id);
  ended(id, END_REASON_COMPLETED, 0);
  id = start();
  w_.EndAll(id, RankExit::FAILED);
  ended(id, END_REASON_FAILED, 1);
  id = start();
  w_.Do(PauseJob{id});
  w_.EndAll(id);
  ended(id, END_REASON_PAUSED, 0);
  id = start();
  w_.Do(CancelJob{id});
  w_.EndAll(id);
  EXPECT_EQ(w_.Newest(id).reason(), END_REASON_CANCELLED);
  reached.insert(END_REASON_CANCELLED);
  id = start();
  w_.Do(DrainNode{NodeId("n")});
  w_.EndAll(id);
  ended(id, END_REASON_DRAINED, 0);
  w_.Do(UndrainNode{NodeId("n")});
  id = start();
  w_.Do(NodeDisconnected{NodeId("n"), Incarnation("i1")});
  w_.TickAfter(absl::Seconds(11));
  ended(id, END_REASON_LOST, 1);
  w_.Return(Hello("n", 2, "i2"));
  id = w_.Submit(Elastic("e", 4, 2));
  w_.TickAfter(absl::Seconds(5));
  w_.RunAll(id);
  Join("m", 2);
  w_.TickAfter(absl::Minutes(5));
  w_.TickAfter(absl::Seconds(30));
  EXPECT_EQ(w_.Newest(id).reason(), END_REASON_RESIZED);
  reached.insert(w_.Newest(id).reason());
  EXPECT_EQ(reached.size(), 7u);
}

}  // namespace
}  // namespace muster::core
