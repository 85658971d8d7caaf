// Projects: membership, quotas, lending and fair share, through the core.
#include "coordinator/core/projects.h"

#include <gmock/gmock.h>

#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

using ::testing::HasSubstr;

class ProjectWorld : public ::testing::Test {
 protected:
  // `nominal`: of cpu slots; below 0: no quota.
  void Set(const std::string& name, const std::vector<std::string>& users, int nominal, double weight = 1,
           std::optional<uint32_t> borrow = std::nullopt, const std::string& cohort = "all") {
    Project project;
    project.set_name(name);
    project.set_weight(weight);
    project.set_cohort(cohort);
    project.mutable_users()->Assign(users.begin(), users.end());
    if (nominal >= 0) {
      DeviceQuota& quota = *project.add_quotas();
      quota.set_device(DEVICE_CPU);
      quota.set_nominal(static_cast<uint32_t>(nominal));
      if (borrow.has_value()) quota.set_borrowing_limit(*borrow);
    }
    const Outcome out = w_.Do(SetProject{project});
    EXPECT_TRUE(out.status.ok()) << out.status;
  }
  Outcome Try(const std::string& user, JobSpec spec) {
    const std::string n = absl::StrCat("p", ++requests_);
    return w_.Do(SubmitJob{"r" + n, user, std::move(spec), n});
  }
  JobId Submit(const std::string& user, JobSpec spec) {
    const Outcome out = Try(user, std::move(spec));
    EXPECT_TRUE(out.status.ok()) << out.status;
    return out.job;
  }
  void Cancel(const JobId& id) {
    w_.Do(CancelJob{id});
    w_.EndAll(id);
    ASSERT_EQ(w_.State(id), JOB_STATE_CANCELLED);
  }
  bool Started(const JobId& id) { return w_.State(id) == JOB_STATE_STARTING || w_.State(id) == JOB_STATE_RUNNING; }

  World w_{AnyWorld()};
  int requests_ = 0;
};

TEST_F(ProjectWorld, AUserBelongsToOneOrNamesOne) {
  EXPECT_EQ(w_.Get(Submit("ann", Spec("a"))).project(), "") << "there are no projects";
  Set("vision", {"ann", "bob"}, -1);
  Set("speech", {"bob"}, -1);
  EXPECT_EQ(w_.Get(Submit("ann", Spec("b"))).project(), "vision");
  EXPECT_EQ(w_.Get(Submit("eve", Spec("c"))).project(), "default");
  EXPECT_THAT(Try("bob", Spec("d")).status.message(), HasSubstr("bob is in speech, vision: set project"));
  JobSpec spec = Spec("e");
  spec.set_project("speech");
  EXPECT_EQ(w_.Get(Submit("bob", spec)).project(), "speech");
  EXPECT_EQ(Try("ann", spec).status.code(), absl::StatusCode::kPermissionDenied);
  spec.set_project("spech");
  EXPECT_THAT(Try("bob", spec).status.message(), HasSubstr("there is no project spech"));
  EXPECT_EQ(w_.Do(DeleteProject{"speech"}).status.code(), absl::StatusCode::kFailedPrecondition) << "it has a job";
  EXPECT_TRUE(w_.Do(DeleteProject{"none"}).status.ok());
}

TEST_F(ProjectWorld, WhatIsWrongWithAProjectIsSaid) {
  const auto wrong = [&](const std::function<void(Project&)>& change) {
    Project project;
    project.set_name("p");
    change(project);
    const Outcome out = w_.Do(SetProject{project});
    EXPECT_EQ(out.status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(out.status.message());
  };
  EXPECT_THAT(wrong([](Project& p) { p.set_name("Vision Team"); }), HasSubstr("name of a project"));
  EXPECT_THAT(wrong([](Project& p) { p.set_weight(0); }), HasSubstr("weight"));
  EXPECT_THAT(wrong([](Project& p) { p.add_users("a"), p.add_users("a"); }), HasSubstr("twice"));
  EXPECT_THAT(wrong([](Project& p) { p.add_quotas()->set_device(DEVICE_AUTO); }), HasSubstr("cpu or for cuda"));
  EXPECT_THAT(wrong([](Project& p) { p.set_name("default"), p.add_users("a"); }), HasSubstr("no users of its own"));
  EXPECT_TRUE(w_.core->ListProjects().empty());
}

// Four slots, two for each project.
TEST_F(ProjectWorld, IdleQuotaIsLentUpToTheLimit) {
  w_.Return(Hello("n", 4));
  Set("a", {"ann"}, 2, 1, 1);
  Set("b", {"bob"}, 2);
  const JobId own = Submit("ann", Gang("own", 2)), lent = Submit("ann", Spec("lent")),
              over = Submit("ann", Spec("over"));
  EXPECT_TRUE(Started(own));
  EXPECT_TRUE(Started(lent));
  EXPECT_FALSE(Started(over));
  EXPECT_THAT(w_.Get(over).reason(),
              HasSubstr("project a may not take 1 more cpu slot: it holds 3, its nominal quota is 2"));
  // It waits for its quota, so it keeps no slots from others.
  EXPECT_TRUE(Started(Submit("bob", Spec("free"))));
  Cancel(lent);
  EXPECT_TRUE(Started(over));
}

TEST_F(ProjectWorld, OwnQuotaComesBeforePriorityOnLentSlots) {
  w_.Return(Hello("n", 4));
  Set("a", {"ann"}, 2);
  Set("b", {"bob"}, 2);
  const JobId all = Submit("ann", Gang("all", 4));
  ASSERT_TRUE(Started(all));
  const JobId first = Submit("ann", Gang("first", 2)), urgent = Submit("ann", Spec("urgent", 9));
  const JobId own = Submit("bob", Gang("own", 2));
  // Of ann's two slots the urgent job takes one, and the other job would need a lent one.
  EXPECT_EQ(w_.Get(urgent).queue_position(), 1u);
  EXPECT_EQ(w_.Get(own).queue_position(), 2u);
  EXPECT_EQ(w_.Get(first).queue_position(), 3u);
  Cancel(all);
  EXPECT_TRUE(Started(urgent));
  EXPECT_TRUE(Started(own));
  EXPECT_FALSE(Started(first));
}

TEST_F(ProjectWorld, SmallJobsOfAProjectDoNotStarveALargerOne) {
  w_.Return(Hello("n", 4));
  for (const char* cohort : {"", "all"}) {
    SCOPED_TRACE(cohort);
    Set("a", {"ann"}, 3, 1, std::nullopt, cohort);
    Set("b", {"bob"}, 1, 1, std::nullopt, cohort);
    const JobId first = Submit("ann", Spec("first")), second = Submit("ann", Spec("second"));
    const JobId wide = Submit("ann", Gang("wide", 3)), small = Submit("ann", Spec("small"));
    EXPECT_EQ(w_.Get(wide).queue_position(), 1u);
    const bool lent = *cohort != 0;  // the fourth slot, of which the larger job needs none
    EXPECT_EQ(Started(small), lent);
    if (!lent) {
      EXPECT_EQ(w_.Get(small).queue_position(), 2u);
      EXPECT_THAT(w_.Get(small).reason(), HasSubstr(absl::StrCat("waiting behind ", wide.value(),
                                                                 ", for which 3 slots of project a's quota are kept")));
    }
    const JobId another = Submit("ann", Spec("another"));
    Cancel(first);
    EXPECT_FALSE(Started(another));
    EXPECT_FALSE(Started(wide));
    Cancel(second);
    EXPECT_TRUE(Started(wide));
    for (const JobId& id : {wide, small, another}) w_.Do(CancelJob{id});
    for (const JobId& id : {wide, small}) {
      if (w_.State(id) == JOB_STATE_STOPPING) w_.EndAll(id);
    }
  }
}

TEST_F(ProjectWorld, AnElasticJobTakesWhatItsQuotaLeaves) {
  w_.Return(Hello("n", 4));
  Set("a", {"ann"}, 3, 1, 0);
  Set("b", {"bob"}, 1);
  JobSpec spec = Gang("e", 4);
  spec.mutable_resources()->set_min_ranks(2);
  const JobId id = Submit("ann", spec);
  w_.TickAfter(w_.options.whole_wait);
  ASSERT_TRUE(Started(id));
  EXPECT_EQ(w_.Newest(id).ranks_size(), 3);
  w_.RunAll(id);
  w_.TickAfter(absl::Minutes(5));
  w_.TickAfter(absl::Minutes(1));
  EXPECT_EQ(w_.State(id), JOB_STATE_RUNNING) << "a slot is free, but not for it";
}

TEST_F(ProjectWorld, TheProjectThatUsedLessByWeightComesFirst) {
  w_.Return(Hello("n", 1));
  Set("a", {"ann"}, -1, 3);
  Set("b", {"bob"}, -1, 1);
  // ann uses two hours, bob one: by weight ann has used less.
  for (const auto& [user, hours] : {std::pair("ann", 2), std::pair("bob", 1)}) {
    const JobId id = Submit(user, Spec(user));
    w_.RunAll(id);
    w_.TickAfter(absl::Hours(hours));
    Cancel(id);
  }
  const JobId holder = Submit("eve", Spec("holder"));
  const JobId bob = Submit("bob", Spec("b")), ann = Submit("ann", Spec("a")), urgent = Submit("bob", Spec("u", 1));
  EXPECT_EQ(w_.Get(urgent).queue_position(), 1u) << "priority first";
  EXPECT_EQ(w_.Get(ann).queue_position(), 2u);
  EXPECT_EQ(w_.Get(bob).queue_position(), 3u);
  EXPECT_EQ(w_.Get(holder).slot_seconds(), 0);
  w_.Restart();
  w_.Return(Hello("n", 1));
  EXPECT_EQ(w_.Get(ann).queue_position(), 2u) << "what was used is on disk";
  double used = 0;
  for (const Project& project : w_.core->ListProjects()) {
    if (project.name() == "a") used = project.usage(0).slot_seconds();
  }
  EXPECT_NEAR(used, 2 * 3600, 60) << "of which little has decayed";
}

TEST_F(ProjectWorld, WhatWasUsedDecaysOverRestartsAlsoWhereNothingRuns) {
  w_.Return(Hello("n", 1));
  Set("a", {"ann"}, -1);
  const JobId id = Submit("ann", Spec("x"));
  w_.RunAll(id);
  w_.TickAfter(absl::Hours(2));
  Cancel(id);
  const auto used = [&]() -> double {
    for (const Project& project : w_.core->ListProjects()) {
      if (project.name() == "a" && project.usage_size() > 0) return project.usage(0).slot_seconds();
    }
    return 0;
  };
  ASSERT_NEAR(used(), 7200, 60);
  for (int restarts = 0; restarts < 28; ++restarts) {  // one half-life
    w_.Pass(absl::Hours(6));
    w_.Restart();
  }
  EXPECT_NEAR(used(), 3600, 100);
  ASSERT_EQ(w_.rows.count("usage/a"), 1u);
  w_.Pass(14 * w_.options.fair_share_half_life);
  EXPECT_EQ(w_.rows.count("usage/a"), 0u) << "less than a second is left";
  EXPECT_EQ(used(), 0);
}

TEST_F(ProjectWorld, WithinAProjectTheUserWhoUsedLessComesFirst) {
  w_.Return(Hello("n", 1));
  Set("a", {"ann", "bob"}, -1);
  const JobId one = Submit("ann", Spec("one"));
  w_.RunAll(one);
  w_.TickAfter(absl::Hours(1));
  const JobId two = Submit("ann", Spec("two")), three = Submit("bob", Spec("three"));
  Cancel(one);
  EXPECT_TRUE(Started(three));
  EXPECT_FALSE(Started(two));
}

TEST_F(ProjectWorld, WithoutProjectsTheOrderIsThatOfSubmission) {
  w_.Return(Hello("n", 1));
  const JobId one = Submit("ann", Spec("one"));
  w_.RunAll(one);
  w_.TickAfter(absl::Hours(1));
  const JobId two = Submit("ann", Spec("two")), three = Submit("bob", Spec("three"));
  Cancel(one);
  EXPECT_TRUE(Started(two));
  EXPECT_FALSE(Started(three));
}

TEST_F(ProjectWorld, AUserHasALimitInAProject) {
  w_.Return(Hello("n", 4));
  Project project;
  project.set_name("a");
  project.add_users("ann");
  project.set_max_running_ranks_of_user(2);
  ASSERT_TRUE(w_.Do(SetProject{project}).status.ok());
  EXPECT_TRUE(Started(Submit("ann", Gang("one", 2))));
  const JobId over = Submit("ann", Spec("two"));
  EXPECT_FALSE(Started(over));
  EXPECT_THAT(w_.Get(over).reason(), HasSubstr("the limit is 2 running ranks a user in project a"));
  EXPECT_TRUE(Started(Submit("eve", Spec("three"))));
}

TEST_F(ProjectWorld, AJobStartsOnTheRanksThatTheLimitOfItsProjectLeaves) {
  w_.Return(Hello("n", 8));
  Project project;
  project.set_name("a");
  project.add_users("ann");
  project.set_max_running_ranks_of_user(5);
  ASSERT_TRUE(w_.Do(SetProject{project}).status.ok());
  ASSERT_TRUE(Started(Submit("ann", Gang("one", 2))));
  JobSpec spec = Gang("elastic", 4);
  spec.mutable_resources()->set_min_ranks(2);
  const JobId elastic = Submit("ann", spec);
  w_.TickAfter(absl::Seconds(5));
  ASSERT_TRUE(Started(elastic)) << w_.Get(elastic).reason();
  EXPECT_EQ(w_.Newest(elastic).ranks_size(), 3);
  const JobId more = Submit("ann", spec);
  w_.TickAfter(absl::Seconds(5));
  EXPECT_THAT(w_.Get(more).reason(), HasSubstr("the limit is 5 running ranks a user in project a"));
}

// One rank hangs on a dead disk for hours after the others have given their slots back.
TEST_F(ProjectWorld, AJobThatStopsIsChargedForTheSlotsThatItStillHolds) {
  w_.Return(Hello("n", 4));
  Set("a", {"ann"}, -1);
  const JobId id = Submit("ann", Gang("gang", 4));
  w_.RunAll(id);
  w_.TickAfter(absl::Hours(1));
  w_.Do(CancelJob{id});
  for (uint32_t rank = 0; rank < 3; ++rank) w_.FinishRank(id, rank);
  w_.TickAfter(absl::Hours(2));
  const double expected = 4 * 3600 + 2 * 3600;
  const SteadyTime now = w_.clock.Read().steady;
  EXPECT_NEAR(w_.core->GetJob(id, now)->slot_seconds(), expected, 1);
  w_.FinishRank(id, 3);
  EXPECT_NEAR(w_.Get(id).slot_seconds(), expected, 1);
  EXPECT_NEAR(w_.Get(id).held_seconds(), 3 * 3600, 1);
  EXPECT_NEAR(w_.core->ListProjects()[0].usage(0).slot_seconds(), expected, 0.02 * expected);
}

}  // namespace
}  // namespace muster::core
