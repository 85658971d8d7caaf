// Jobs that wait for their plans: what the core asks for, and what it does while the answer is on its way.
#include "coordinator/core/wanted_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "coordinator/core/core.h"
#include "coordinator/core/replicas.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

class SlowPlans : public testing::Test {
 protected:
  SlowPlans() { w_.held = true; }

  // Gangs of different batch sizes are planned apart.
  JobId Submit(const std::string& name, uint32_t ranks, int priority = 0) {
    JobSpec spec = Gang(name, ranks);
    spec.set_priority(priority);
    spec.mutable_train()->mutable_batch()->set_sequences(100 + ++batches_);
    return w_.Submit(spec);
  }
  void Answer(const std::string& key, absl::StatusOr<PlannedPtr> plan) {
    w_.requested.erase(key);
    w_.Do(PlanReady{key, std::move(plan)});
  }
  // The only request under way.
  RequestPlan Only() {
    EXPECT_EQ(w_.requested.size(), 1u);
    return w_.requested.empty() ? RequestPlan{} : w_.requested.begin()->second;
  }
  void AnswerOnly() {
    const RequestPlan request = Only();
    Answer(request.key, w_.Make(request));
  }
  std::string Reason(const JobId& id) { return w_.Get(id).reason(); }

  World w_{AnyWorld()};
  uint32_t batches_ = 0;
};

TEST_F(SlowPlans, AGangWaitsForItsPlanAndSaysSo) {
  const JobId id = Submit("g", 3);
  EXPECT_TRUE(w_.requested.empty()) << "not before there are slots";
  w_.Do(NodeConnected{Hello("a", 4)});
  EXPECT_EQ(Only().slots.ranks.size(), 3u);
  EXPECT_EQ(w_.State(id), JOB_STATE_QUEUED);
  EXPECT_EQ(Reason(id), "1st in the queue: slots are free, and its plan is being computed");
  EXPECT_EQ(w_.core->ListJobs(false).at(0).reason(), Reason(id));
  AnswerOnly();
  EXPECT_EQ(w_.State(id), JOB_STATE_STARTING);
  EXPECT_TRUE(w_.requested.empty());
}

TEST_F(SlowPlans, ItsSlotsAreKeptFromThoseBehindItOnly) {
  w_.Do(NodeConnected{Hello("a", 3)});
  const JobId first = Submit("first", 2), small = Submit("small", 2);
  EXPECT_EQ(w_.requested.size(), 1u) << "there are no slots for the second";
  const std::string key = Only().key;
  // One before it takes them: it is planned for others when it comes to that, and the old request is cancelled.
  const JobId urgent = Submit("urgent", 3, /*priority=*/1);
  EXPECT_EQ(w_.requested.size(), 1u);
  EXPECT_FALSE(w_.requested.contains(key));
  AnswerOnly();
  EXPECT_EQ(w_.State(urgent), JOB_STATE_STARTING);
  EXPECT_EQ(w_.State(first), JOB_STATE_QUEUED);
  EXPECT_EQ(w_.State(small), JOB_STATE_QUEUED);
  EXPECT_TRUE(w_.requested.empty());
}

// Otherwise a cluster in which slots come and go would keep it planning.
TEST_F(SlowPlans, BetterSlotsThatComeMeanwhileChangeNothing) {
  w_.Do(NodeConnected{Hello("a", 2)});
  w_.Do(NodeConnected{Hello("b", 2)});
  const JobId id = Submit("g", 3);
  const RequestPlan request = Only();
  for (const char* node : {"c", "d", "e"}) {
    w_.Do(NodeConnected{Hello(node, 4)});
    EXPECT_EQ(Only().key, request.key);
  }
  AnswerOnly();
  ASSERT_EQ(w_.State(id), JOB_STATE_STARTING);
  EXPECT_EQ(w_.Newest(id).ranks(0).node(), "a");
  EXPECT_EQ(w_.Newest(id).ranks(2).node(), "b");
}

TEST_F(SlowPlans, SlotsThatGoMeanwhileAreReplaced) {
  w_.Do(NodeConnected{Hello("a", 2)});
  const JobId id = Submit("g", 2);
  const RequestPlan before = Only();
  w_.Do(NodeDisconnected{NodeId("a"), Incarnation("i1")});
  EXPECT_TRUE(w_.requested.empty()) << "no one needs the plan any more";
  EXPECT_TRUE(absl::StrContains(Reason(id), "no node accepts ranks now")) << Reason(id);
  Node other = Hello("b", 2);
  for (Slot& slot : *other.mutable_slots()) slot.set_memory_bytes(1 << 30);
  w_.Do(NodeConnected{other});
  EXPECT_NE(Only().key, before.key) << "of other memory";
  Answer(before.key, w_.Make(before));  // it was made all the same
  EXPECT_EQ(w_.State(id), JOB_STATE_QUEUED);
  AnswerOnly();
  ASSERT_EQ(w_.State(id), JOB_STATE_STARTING);
  EXPECT_EQ(w_.Newest(id).ranks(0).node(), "b");
}

TEST_F(SlowPlans, AnswersComeInAnyOrder) {
  w_.Do(NodeConnected{Hello("a", 4)});
  const JobId first = Submit("first", 2), second = Submit("second", 2);
  ASSERT_EQ(w_.requested.size(), 2u);
  std::vector<RequestPlan> requests;
  for (const auto& [key, request] : w_.requested) requests.push_back(request);
  for (const RequestPlan& request : requests) {
    Answer(request.key, w_.Make(request));
    Answer(request.key, w_.Make(request));  // twice is once
  }
  EXPECT_EQ(w_.State(first), JOB_STATE_STARTING);
  EXPECT_EQ(w_.State(second), JOB_STATE_STARTING);
}

TEST_F(SlowPlans, TheSamePlanIsAskedForOnce) {
  w_.Do(NodeConnected{Hello("a", 2)});
  w_.Do(NodeConnected{Hello("b", 2)});
  const JobId one = w_.Submit(Gang("one", 2)), two = w_.Submit(Gang("two", 2));
  EXPECT_EQ(w_.requested.size(), 1u);
  AnswerOnly();
  EXPECT_EQ(w_.State(one), JOB_STATE_STARTING);
  EXPECT_EQ(w_.State(two), JOB_STATE_STARTING);
}

TEST_F(SlowPlans, WhatAUserTakesBackIsCancelled) {
  w_.Do(NodeConnected{Hello("a", 2)});
  const JobId cancelled = Submit("cancelled", 1), paused = Submit("paused", 1);
  std::vector<RequestPlan> requests;
  for (const auto& [key, request] : w_.requested) requests.push_back(request);
  ASSERT_EQ(requests.size(), 2u);
  const Outcome out = w_.Do(CancelJob{cancelled});
  EXPECT_TRUE(std::any_of(out.actions.begin(), out.actions.end(),
                          [](const Action& action) { return std::holds_alternative<CancelPlan>(action); }));
  w_.Do(PauseJob{paused});
  EXPECT_TRUE(w_.requested.empty());
  w_.Do(DeleteJob{cancelled});
  for (const RequestPlan& request : requests) Answer(request.key, w_.Make(request));
  EXPECT_EQ(w_.State(paused), JOB_STATE_PAUSED);
  w_.Do(ResumeJob{paused});
  AnswerOnly();
  EXPECT_EQ(w_.State(paused), JOB_STATE_STARTING);
}

// In particular a job that was accepted by an earlier build, and stored.
TEST_F(SlowPlans, AJobThatCannotBePlannedFailsAndStaysSo) {
  w_.Do(NodeConnected{Hello("a", 2)});
  const JobId id = Submit("huge", 2), next = Submit("next", 2);
  Answer(Only().key, absl::ResourceExhaustedError("planning stops at its limit of work: a schedule of 9 ops"));
  EXPECT_EQ(w_.State(id), JOB_STATE_FAILED);
  EXPECT_EQ(Reason(id), "it cannot be planned: planning stops at its limit of work: a schedule of 9 ops");
  w_.Restart();
  EXPECT_EQ(w_.State(id), JOB_STATE_FAILED);
  w_.Do(NodeConnected{Hello("a", 2)});
  w_.ReportNothing("a");
  AnswerOnly();
  EXPECT_EQ(w_.State(next), JOB_STATE_STARTING);
}

TEST_F(SlowPlans, ARestartedCoordinatorAsksAgain) {
  w_.Do(NodeConnected{Hello("a", 3)});
  const JobId runs = Submit("runs", 1);
  AnswerOnly();
  ASSERT_EQ(w_.State(runs), JOB_STATE_STARTING);
  const Assignment before = w_.core->DesiredFor(NodeId("a")).ranks(0).run();
  const JobId waits = Submit("waits", 2);
  w_.Restart();
  EXPECT_TRUE(w_.core->IsPlanPending(runs));
  EXPECT_EQ(w_.core->PlanOf(runs), nullptr);
  EXPECT_EQ(w_.core->DesiredFor(NodeId("a")).ranks(0).run().SerializeAsString(), before.SerializeAsString())
      << "a rank may start meanwhile: its table is the same";
  AnswerOnly();
  EXPECT_FALSE(w_.core->IsPlanPending(runs));
  ASSERT_NE(w_.core->PlanOf(runs), nullptr);
  EXPECT_EQ(w_.core->PlanOf(runs)->table_sha256, before.table_sha256());
  w_.Do(NodeConnected{Hello("a", 3)});
  w_.Report(runs, RANK_STATE_STARTING, RankExit::CAUSE_UNSPECIFIED, /*full=*/true);
  AnswerOnly();
  EXPECT_EQ(w_.State(waits), JOB_STATE_STARTING);
}

TEST_F(SlowPlans, ABuildThatPlansDifferentlyNamesNoTable) {
  w_.Do(NodeConnected{Hello("a", 1)});
  const JobId id = Submit("g", 1);
  AnswerOnly();
  w_.Restart();
  Planned other = **w_.Make(Only());
  other.table_sha256 = "another";
  const Outcome out = w_.Do(PlanReady{Only().key, std::make_shared<const Planned>(other)});
  EXPECT_EQ(w_.core->PlanOf(id), nullptr);
  EXPECT_FALSE(w_.core->IsPlanPending(id));
  EXPECT_EQ(w_.core->DesiredFor(NodeId("a")).ranks(0).run().table_sha256(), "");
  EXPECT_TRUE(std::any_of(out.actions.begin(), out.actions.end(), [](const Action& action) {
    return std::holds_alternative<SendDesired>(action);
  })) << "its worker receives that";
  EXPECT_EQ(w_.State(id), JOB_STATE_STARTING) << "ranks that run go on";
}

TEST_F(SlowPlans, SubmitMayBringThePlanAlong) {
  w_.Do(NodeConnected{Hello("a", 2)});
  const JobSpec spec = Gang("g", 2);
  const Slots slots = w_.core->WouldPlace(spec, 0, /*whole=*/true).slots;
  SubmitJob submit{"r", "me", spec, "s"};
  submit.plan = PlanReady{PlanKey(spec, slots), w_.Make({PlanKey(spec, slots), spec, slots})};
  const JobId id = w_.Do(submit).job;
  EXPECT_EQ(w_.State(id), JOB_STATE_STARTING);
  EXPECT_TRUE(w_.requested.empty());
  // Of other slots it is of no use, and is forgotten.
  submit.request_id = "r2";
  submit.suffix = "s2";
  const JobId next = w_.Do(submit).job;
  EXPECT_EQ(w_.State(next), JOB_STATE_QUEUED);
  w_.Do(NodeConnected{Hello("b", 2)});
  EXPECT_EQ(w_.requested.size(), 1u);
}

TEST_F(SlowPlans, GrowthWaitsForItsPlanToo) {
  JobSpec spec = Gang("e", 4);
  spec.mutable_resources()->set_min_ranks(2);
  w_.Do(NodeConnected{Hello("a", 2)});
  const JobId id = w_.Submit(spec);
  w_.clock.Advance(absl::Seconds(5));
  w_.Do(Tick{});
  AnswerOnly();
  for (uint32_t rank = 0; rank < 2; ++rank) w_.ReportRank(id, rank, RANK_STATE_RUNNING);
  w_.Do(NodeConnected{Hello("b", 2)});
  w_.clock.Advance(absl::Minutes(5));
  w_.Do(Tick{});
  EXPECT_EQ(Only().slots.ranks.size(), 4u);
  AnswerOnly();
  EXPECT_EQ(w_.State(id), JOB_STATE_RUNNING) << "the slots have to be free at two looks";
  w_.clock.Advance(absl::Seconds(30));
  w_.Do(Tick{});
  EXPECT_EQ(w_.State(id), JOB_STATE_STOPPING);
}

TEST(PlanKey, IsOfWhatALayoutDependsOn) {
  const JobSpec spec = Gang("g", 2);
  const Slots slots{strategies::AnyPlaces(2), DEVICE_CPU, ""};
  const auto key = [&](const std::function<void(JobSpec&)>& change) {
    JobSpec other = spec;
    change(other);
    return PlanKey(other, slots);
  };
  const std::string same = PlanKey(spec, slots);
  EXPECT_EQ(same, key([](JobSpec& s) { s.set_name("other"), s.set_priority(3); }));
  EXPECT_EQ(same, key([](JobSpec& s) { s.mutable_train()->set_steps(7), s.mutable_train()->set_seed(7); }));
  EXPECT_EQ(same, key([](JobSpec& s) { s.mutable_train()->mutable_data()->set_tokens("/other"); }));
  EXPECT_NE(same, key([](JobSpec& s) { s.mutable_train()->mutable_batch()->set_microbatch(3); }));
  EXPECT_NE(same, key([](JobSpec& s) { s.mutable_train()->mutable_model()->mutable_gpt2()->set_layers(3); }));
  EXPECT_NE(same, key([](JobSpec& s) { s.mutable_train()->mutable_strategy()->mutable_zero()->set_stage(2); }));
  EXPECT_NE(same, key([](JobSpec& s) { s.mutable_train()->mutable_precision()->set_compute(DTYPE_BF16); }));
  EXPECT_NE(same, key([](JobSpec& s) { s.mutable_train()->set_activation_checkpointing(true); }));
  EXPECT_NE(same, key([](JobSpec& s) { s.mutable_train()->mutable_optimizer()->mutable_sgd()->set_momentum(0); }));
  Slots other = slots;
  other.ranks[1].memory_bytes = 1;
  EXPECT_NE(same, PlanKey(spec, other));
}

// What a plan says of their exchanges is not said of a job without, nor of others.
TEST(PlanKey, IsOfHowReplicasExchangeAndNotOfWhichOneItIs) {
  const Slots slots{strategies::AnyPlaces(2), DEVICE_CPU, ""};
  JobSpec spec = Gang("g", 2);
  const std::string without = PlanKey(spec, slots);
  Sync& sync = *spec.mutable_train()->mutable_sync();
  sync.set_replicas(2), sync.set_every(10);
  const std::string same = PlanKey(spec, slots);
  EXPECT_NE(same, without);
  EXPECT_EQ(same, PlanKey(SpecOfReplica(spec, "run", 0), slots));
  EXPECT_EQ(same, PlanKey(SpecOfReplica(spec, "other", 1), slots));
  sync.set_every(20);
  EXPECT_NE(same, PlanKey(spec, slots));
}

}  // namespace
}  // namespace muster::core
