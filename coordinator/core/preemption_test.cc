// Preemption: by quota and by priority, in good order, bounded.
#include <gmock/gmock.h>

#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

using ::testing::HasSubstr;

class PreemptionWorld : public ::testing::Test {
 protected:
  explicit PreemptionWorld(bool by_priority = false)
      : w_([&] {
          WorldOptions options = AnyWorld();
          options.preempt_lower_priority = by_priority;
          return options;
        }()) {}
  void Set(const std::string& name, const std::string& user, uint32_t nominal) {
    Project project;
    project.set_name(name);
    project.set_cohort("all");
    project.add_users(user);
    project.add_quotas()->set_device(DEVICE_CPU);
    project.mutable_quotas(0)->set_nominal(nominal);
    ASSERT_TRUE(w_.Do(SetProject{project}).status.ok());
  }
  JobId Submit(const std::string& user, const JobSpec& spec) {
    const std::string n = absl::StrCat("v", ++requests_);
    const Outcome out = w_.Do(SubmitJob{"r" + n, user, spec, n});
    EXPECT_TRUE(out.status.ok()) << out.status;
    return out.job;
  }
  JobId Running(const std::string& user, const JobSpec& spec) {
    const JobId id = Submit(user, spec);
    w_.RunAll(id);
    return id;
  }
  World w_;
  int requests_ = 0;
};

class PriorityWorld : public PreemptionWorld {
 protected:
  PriorityWorld() : PreemptionWorld(true) {}
};

TEST_F(PreemptionWorld, AProjectReclaimsItsQuota) {
  w_.Return(Hello("n", 4));
  Set("a", "ann", 2);
  Set("b", "bob", 2);
  const JobId own = Running("ann", Gang("own", 2)), lent = Running("ann", Gang("lent", 2));
  w_.Checkpoint(lent, 30);
  w_.TickAfter(absl::Minutes(11));
  const JobId claimant = Submit("bob", Gang("claimant", 2));
  EXPECT_EQ(w_.State(own), JOB_STATE_RUNNING);
  EXPECT_EQ(w_.State(lent), JOB_STATE_STOPPING);
  EXPECT_THAT(w_.Get(lent).reason(), HasSubstr("preempted by " + claimant.value() + ": project b needs its quota"));
  const Desired desired = w_.core->DesiredFor(NodeId("n"));
  int stops = 0;
  for (const DesiredRank& rank : desired.ranks()) {
    if (!rank.has_stop()) continue;
    ++stops;
    EXPECT_TRUE(rank.stop().checkpoint_first());
    EXPECT_EQ(rank.stop().reason(), END_REASON_PREEMPTED);
  }
  EXPECT_EQ(stops, 2);
  w_.Checkpoint(lent, 44);
  w_.EndAll(lent);
  EXPECT_EQ(w_.State(claimant), JOB_STATE_STARTING);
  EXPECT_EQ(w_.State(lent), JOB_STATE_QUEUED);
  EXPECT_EQ(w_.Get(lent).restarts(), 0u);
  EXPECT_EQ(w_.Newest(lent).reason(), END_REASON_PREEMPTED);
  // It waits for its turn, takes nothing back, and then resumes.
  w_.RunAll(claimant);
  w_.TickAfter(absl::Hours(1));
  EXPECT_EQ(w_.State(claimant), JOB_STATE_RUNNING);
  w_.Do(CancelJob{claimant});
  w_.EndAll(claimant);
  EXPECT_EQ(w_.State(lent), JOB_STATE_STARTING);
  EXPECT_EQ(w_.Newest(lent).resume_from().step(), 44u);
}

TEST_F(PreemptionWorld, NotBeforeTheVictimHasRunForTheLeastTime) {
  w_.Return(Hello("n", 2));
  Set("a", "ann", 0);
  Set("b", "bob", 2);
  const JobId lent = Running("ann", Gang("lent", 2));
  const JobId claimant = Submit("bob", Gang("claimant", 2));
  EXPECT_EQ(w_.State(lent), JOB_STATE_RUNNING);
  EXPECT_LT(w_.Pass(absl::Minutes(10) - absl::Seconds(1)), 10) << "times are stored, nothing else has to happen";
  EXPECT_EQ(w_.State(lent), JOB_STATE_RUNNING);
  w_.Pass(absl::Seconds(1));
  EXPECT_EQ(w_.State(lent), JOB_STATE_STOPPING);
  EXPECT_EQ(w_.State(claimant), JOB_STATE_QUEUED);
}

TEST_F(PreemptionWorld, NothingStopsInVain) {
  w_.Return(Hello("n", 4));
  Set("a", "ann", 2);
  Set("b", "bob", 2);
  const JobId own = Running("bob", Spec("own")), lent = Running("ann", Gang("lent", 3));
  w_.TickAfter(absl::Hours(1));
  Submit("bob", Gang("claimant", 2));  // beyond bob's own two: it would borrow
  EXPECT_EQ(w_.State(lent), JOB_STATE_RUNNING);
  EXPECT_EQ(w_.State(own), JOB_STATE_RUNNING);
}

TEST_F(PreemptionWorld, AnElasticJobShrinks) {
  w_.Return(Hello("n", 4));
  Set("a", "ann", 2);
  Set("b", "bob", 2);
  JobSpec spec = Gang("elastic", 4);
  spec.mutable_resources()->set_min_ranks(2);
  const JobId elastic = Running("ann", spec);
  w_.TickAfter(absl::Hours(1));
  const JobId claimant = Submit("bob", Gang("claimant", 2));
  ASSERT_EQ(w_.State(elastic), JOB_STATE_STOPPING);
  w_.EndAll(elastic);
  EXPECT_EQ(w_.State(claimant), JOB_STATE_STARTING);
  EXPECT_EQ(w_.State(elastic), JOB_STATE_STARTING);
  EXPECT_EQ(w_.Newest(elastic).ranks_size(), 2);
}

// It waits for a moment for all of its ranks. What others would stop for is what it lacks after that.
TEST_F(PriorityWorld, AnElasticJobStopsNoneForRanksThatItCanDoWithout) {
  w_.Return(Hello("n", 8));
  const JobId low = Running("ann", Gang("low", 4));
  w_.TickAfter(absl::Hours(1));
  JobSpec spec = Gang("high", 8);
  spec.set_priority(9);
  spec.mutable_resources()->set_min_ranks(2);
  const JobId high = Submit("bob", spec);
  EXPECT_EQ(w_.State(low), JOB_STATE_RUNNING) << w_.Get(low).reason();
  w_.TickAfter(absl::Seconds(5));
  EXPECT_EQ(w_.State(high), JOB_STATE_STARTING);
  EXPECT_EQ(w_.Newest(high).ranks_size(), 4);
  EXPECT_EQ(w_.State(low), JOB_STATE_RUNNING);
}

TEST_F(PreemptionWorld, PriorityDoesNotPreemptUnlessTheAdminSaysSo) {
  w_.Return(Hello("n", 1));
  const JobId low = Running("ann", Spec("low"));
  w_.TickAfter(absl::Hours(1));
  Submit("bob", Spec("high", 9));
  EXPECT_EQ(w_.State(low), JOB_STATE_RUNNING);
}

TEST_F(PriorityWorld, AHigherPriorityTakesTheCheapest) {
  w_.Return(Hello("n", 3));
  JobSpec spot = Spec("spot");
  spot.set_preemptible(true);
  const JobId cheap = Running("ann", spot), other = Running("ann", Spec("other")),
              same = Running("ann", Spec("same", 5));
  w_.TickAfter(absl::Hours(1));
  w_.Checkpoint(other, 9);
  const JobId high = Submit("bob", Spec("high", 5));
  EXPECT_EQ(w_.State(cheap), JOB_STATE_STOPPING);
  EXPECT_EQ(w_.State(other), JOB_STATE_RUNNING);
  w_.EndAll(cheap);
  EXPECT_EQ(w_.State(high), JOB_STATE_STARTING);
  EXPECT_THAT(w_.Get(cheap).reason(), HasSubstr("1st in the queue"));
  w_.RunAll(high);
  // What has the same priority is safe, so nothing more is stopped; nor does the victim preempt anyone.
  w_.TickAfter(absl::Hours(1));
  EXPECT_EQ(w_.State(same), JOB_STATE_RUNNING);
  EXPECT_EQ(w_.State(other), JOB_STATE_RUNNING);
  EXPECT_EQ(w_.State(high), JOB_STATE_RUNNING);
}

JobSpec GangOf(const std::string& name, uint32_t ranks, int priority) {
  JobSpec spec = Gang(name, ranks);
  spec.set_priority(priority);
  return spec;
}

// The slots of a job that is stopping, and that is queued again before the claimant, are not free for it.
TEST_F(PriorityWorld, NothingStopsForSlotsThatAJobTakesAgain) {
  w_.Return(Hello("n", 4));
  const JobId high = Running("eve", GangOf("high", 2, 5)), low = Running("ann", GangOf("low", 2, 0));
  w_.TickAfter(absl::Hours(1));
  w_.ReportRank(high, 0, RANK_STATE_EXITED, RankExit::FAILED);
  ASSERT_EQ(w_.State(high), JOB_STATE_STOPPING);
  const JobId claimant = Submit("bob", GangOf("claimant", 4, 3));
  EXPECT_EQ(w_.State(low), JOB_STATE_RUNNING);
  w_.ReportRank(high, 1, RANK_STATE_EXITED, RankExit::STOPPED);
  ASSERT_EQ(w_.State(high), JOB_STATE_QUEUED) << "in backoff";
  EXPECT_EQ(w_.State(low), JOB_STATE_RUNNING);
  w_.PassBackoff();
  EXPECT_EQ(w_.State(high), JOB_STATE_STARTING);
  EXPECT_EQ(w_.State(low), JOB_STATE_RUNNING);
  EXPECT_EQ(w_.State(claimant), JOB_STATE_QUEUED);
}

TEST_F(PriorityWorld, NothingStopsForSlotsThatAreReservedForAJobBefore) {
  w_.Return(Hello("n", 3));
  const JobId low = Running("ann", GangOf("low", 1, 0));
  w_.TickAfter(absl::Hours(1));
  w_.held = true;  // no plan is made
  const JobId planned = Submit("eve", GangOf("planned", 1, 5));
  const JobId all = Submit("bob", GangOf("all", 3, 4));
  EXPECT_EQ(w_.State(low), JOB_STATE_RUNNING) << "all three are never free";
  w_.Do(CancelJob{all});
  const JobId two = Submit("bob", GangOf("two", 2, 4));
  EXPECT_EQ(w_.State(low), JOB_STATE_STOPPING) << "of two free slots one is reserved";
  EXPECT_EQ(w_.State(planned), JOB_STATE_QUEUED);
  EXPECT_EQ(w_.State(two), JOB_STATE_QUEUED);
}

TEST_F(PriorityWorld, AfterARestartOfTheCoordinatorAStopGoesOn) {
  w_.Return(Hello("n", 1));
  const JobId low = Running("ann", Spec("low"));
  w_.TickAfter(absl::Hours(1));
  const JobId high = Submit("bob", Spec("high", 1));
  ASSERT_EQ(w_.State(low), JOB_STATE_STOPPING);
  w_.Restart();
  w_.Do(NodeConnected{Hello("n", 1)});
  w_.Report(low, RANK_STATE_EXITED, RankExit::STOPPED, true);
  EXPECT_EQ(w_.State(low), JOB_STATE_QUEUED);
  EXPECT_EQ(w_.State(high), JOB_STATE_STARTING);
  EXPECT_EQ(w_.Get(low).restarts(), 0u);
}

}  // namespace
}  // namespace muster::core
