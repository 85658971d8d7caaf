// Nodes that are reserved in windows of time.
#include "coordinator/core/reservations.h"

#include <gmock/gmock.h>

#include "common/proto_time.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kDay = absl::Hours(24);

JobSpec Within(const std::string& reservation, const std::string& name, uint32_t ranks = 1) {
  JobSpec spec = Gang(name, ranks);
  spec.mutable_resources()->set_reservation(reservation);
  return spec;
}

class ReservationWorld : public ::testing::Test {
 protected:
  absl::Time Now() const { return w_.clock.Read().wall; }
  // From so long after now, for so long.
  Reservation Of(const std::string& name, const std::vector<std::string>& nodes, absl::Duration begins_in,
                 absl::Duration lasts, const std::vector<std::string>& users = {}) const {
    Reservation reservation;
    reservation.set_name(name);
    for (const std::string& node : nodes) reservation.add_nodes(node);
    *reservation.mutable_start() = ToProto(Now() + begins_in);
    *reservation.mutable_end() = ToProto(Now() + begins_in + lasts);
    for (const std::string& user : users) reservation.add_users(user);
    return reservation;
  }
  void Set(const Reservation& reservation) {
    const Outcome set = w_.Do(SetReservation{reservation});
    ASSERT_TRUE(set.status.ok()) << set.status;
  }
  // It is elastic, and runs on one slot of those that it requests.
  JobId RunOnOneSlot(JobSpec spec) {
    spec.mutable_resources()->set_min_ranks(1);
    const JobId id = w_.Submit(spec);
    w_.Pass(w_.options.whole_wait);
    EXPECT_EQ(w_.Newest(id).ranks_size(), 1);
    w_.RunAll(id);
    return id;
  }
  std::string NodeOf(const JobId& id) { return w_.Newest(id).ranks(0).node(); }
  absl::StatusCode SubmitAs(const std::string& owner, const JobSpec& spec, std::string* message = nullptr) {
    const std::string n = absl::StrCat(++w_.requests);
    const absl::Status status = w_.Do(SubmitJob{"r" + n, owner, spec, "s" + n}).status;
    if (message != nullptr) *message = std::string(status.message());
    return status.code();
  }

  World w_{AnyWorld()};
};

TEST_F(ReservationWorld, OnlyAJobThatEndsBeforeTheWindowStarts) {
  w_.Return(Hello("n", 2));
  Set(Of("maint", {"n"}, absl::Hours(1), absl::Hours(1)));
  const JobId endless = w_.Submit(Gang("endless", 1));
  const JobId longer = w_.Submit(Limited("longer", "60m"));  // and it may need time to stop
  const JobId shorter = w_.Submit(Limited("shorter", "30m"));
  EXPECT_EQ(w_.State(endless), JOB_STATE_QUEUED);
  EXPECT_EQ(w_.State(longer), JOB_STATE_QUEUED);
  EXPECT_EQ(w_.State(shorter), JOB_STATE_STARTING);
  EXPECT_EQ(w_.Get(endless).reason(),
            "1st in the queue, starts in at most 2h: needs 1 slot, 0 of 0 free (in use: " + shorter.value() +
                "), without n: reservation maint begins in 1h, a time_limit that ends before would do");
  EXPECT_EQ(FromProto(w_.Get(endless).predicted_start()), Now() + absl::Hours(2));
  w_.RunAll(shorter);
  w_.Pass(absl::Minutes(20));
  w_.Finish(shorter);
  EXPECT_EQ(w_.State(longer), JOB_STATE_QUEUED);
  w_.Pass(absl::Minutes(41));
  EXPECT_THAT(w_.Get(endless).reason(), HasSubstr("without n: reservation maint ends in 59m"));
  EXPECT_THAT(w_.events, Contains("reservation.began"));
  w_.Pass(absl::Minutes(59) - absl::Seconds(1));
  EXPECT_EQ(w_.State(endless), JOB_STATE_QUEUED);
  w_.Pass(absl::Seconds(1));  // no event but the timer
  EXPECT_EQ(w_.State(endless), JOB_STATE_STARTING);
  EXPECT_EQ(w_.State(longer), JOB_STATE_STARTING);
  EXPECT_THAT(w_.events, Contains("reservation.ended"));
}

TEST_F(ReservationWorld, AWaitingJobTakesTheOtherNodes) {
  w_.Return(Hello("a", 1));
  w_.Return(Hello("b", 1));
  Set(Of("maint", {"a"}, 7 * kDay, absl::Hours(1)));
  const JobId endless = w_.Submit(Gang("endless", 1));
  EXPECT_EQ(NodeOf(endless), "b");
  EXPECT_EQ(NodeOf(w_.Submit(Limited("short", "1h"))), "a");
}

TEST_F(ReservationWorld, NothingThatRunsIsStoppedButNamed) {
  w_.Return(Hello("a", 2));
  w_.Return(Hello("b", 1));
  const JobId endless = w_.Submit(Gang("endless", 1)), timed = w_.Submit(Limited("timed", "30m"));
  ASSERT_EQ(NodeOf(endless), "b") << "the fullest node";
  ASSERT_EQ(NodeOf(timed), "a");
  const JobId other = w_.Submit(Gang("other", 1));
  ASSERT_EQ(NodeOf(other), "a");
  Set(Of("maint", {"a"}, absl::Hours(1), absl::Hours(1)));
  const std::vector<Reservation> all = w_.core->ListReservations();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_THAT(all[0].overlapping_jobs(), ElementsAre(other.value())) << "timed ends before, endless is elsewhere";
  EXPECT_EQ(all[0].state(), RESERVATION_STATE_INACTIVE);
  w_.RunAll(other);
  w_.Pass(absl::Hours(1));
  EXPECT_EQ(w_.core->ListReservations()[0].state(), RESERVATION_STATE_ACTIVE);
  EXPECT_EQ(w_.State(other), JOB_STATE_RUNNING);
}

TEST_F(ReservationWorld, AJobInItWaitsForTheStartAndIsPausedAtTheEnd) {
  w_.Return(Hello("a", 1));
  w_.Return(Hello("b", 1));
  Set(Of("lab", {"b"}, absl::Hours(1), absl::Hours(2), {"me"}));
  const JobId first = w_.Submit(Within("lab", "first")), second = w_.Submit(Within("lab", "second"));
  const JobId outside = w_.Submit(Gang("outside", 1));
  EXPECT_EQ(NodeOf(outside), "a");
  w_.RunAll(outside);
  const JobId more = w_.Submit(Gang("more", 1));
  EXPECT_EQ(w_.Get(first).reason(), "1st in the queue: waiting for reservation lab, which begins in 1h");
  w_.Pass(absl::Hours(1) - absl::Seconds(1));
  EXPECT_EQ(w_.State(first), JOB_STATE_QUEUED);
  w_.Pass(absl::Seconds(1));
  ASSERT_EQ(w_.State(first), JOB_STATE_STARTING);
  EXPECT_EQ(NodeOf(first), "b");
  EXPECT_EQ(w_.State(more), JOB_STATE_QUEUED) << "its user may use the reservation, but it does not name it";
  EXPECT_THAT(w_.Get(second).reason(), HasSubstr("needs 1 slot, 0 of 1 free (in use: "));
  EXPECT_THAT(w_.Get(second).reason(), HasSubstr("in reservation lab"));
  w_.RunAll(first);
  w_.Pass(absl::Hours(2));
  EXPECT_EQ(w_.State(first), JOB_STATE_STOPPING);
  EXPECT_TRUE(w_.core->DesiredFor(NodeId("b")).ranks(0).stop().checkpoint_first());
  EXPECT_EQ(w_.State(second), JOB_STATE_PAUSED);
  w_.EndAll(first);
  EXPECT_EQ(w_.State(first), JOB_STATE_PAUSED);
  for (const JobId& id : {first, second}) {
    EXPECT_EQ(w_.Get(id).reason(), "its reservation lab has ended; to continue: muster resume " + id.value());
    EXPECT_EQ(w_.Get(id).reservation(), "");
  }
  EXPECT_EQ(w_.Get(first).restarts(), 0u);
  ASSERT_EQ(w_.State(more), JOB_STATE_STARTING) << "on b";
  w_.Finish(outside);
  w_.Do(ResumeJob{second});
  EXPECT_EQ(NodeOf(second), "a") << "it runs without the reservation";
}

// What it waits for is known, so jobs after it may use its node until then.
TEST_F(ReservationWorld, OneInAReservationIsPredictedToEndWithIt) {
  w_.Return(Hello("a", 2));
  Set(Of("lab", {"a"}, absl::ZeroDuration(), absl::Hours(2), {"me"}));
  w_.RunAll(w_.Submit(Within("lab", "inside")));
  const JobId outside = w_.Submit(Gang("outside", 2));
  const absl::Duration stop = w_.options.timeouts.stop;
  EXPECT_EQ(FromProto(w_.Get(outside).predicted_start()), Now() + absl::Hours(2) + stop);
}

TEST_F(ReservationWorld, WhoMayNotUseItIsRefused) {
  w_.Return(Hello("a", 1));
  w_.Return(Hello("b", 1));
  w_.Return(Hello("c", 1));
  Project nlp;
  nlp.set_name("nlp");
  nlp.add_users("bob");
  ASSERT_TRUE(w_.Do(SetProject{nlp}).status.ok());
  Reservation lab = Of("lab", {"a"}, absl::Hours(1), absl::Hours(1), {"ann"});
  lab.add_projects("nlp");
  Set(lab);
  Set(Of("maint", {"b"}, absl::Hours(1), absl::Hours(1)));
  std::string message;
  EXPECT_EQ(SubmitAs("ann", Within("lab", "x")), absl::StatusCode::kOk);
  EXPECT_EQ(SubmitAs("bob", Within("lab", "x")), absl::StatusCode::kOk);
  EXPECT_EQ(SubmitAs("eve", Within("lab", "x"), &message), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(message, "resources.reservation: lab is for ann, project nlp, not for eve or project default");
  EXPECT_EQ(SubmitAs("ann", Within("maint", "x"), &message), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(message, HasSubstr("maint is for maintenance"));
  EXPECT_EQ(SubmitAs("ann", Within("labs", "x"), &message), absl::StatusCode::kNotFound);
  EXPECT_EQ(message, "resources.reservation: there is no reservation labs; muster reservations lists them");
  w_.Pass(absl::Hours(3));
  EXPECT_EQ(SubmitAs("ann", Within("lab", "x"), &message), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(message, HasSubstr("lab ended at "));
}

TEST_F(ReservationWorld, AJobWhoseUserLosesItIsPaused) {
  w_.Return(Hello("a", 1));
  Set(Of("lab", {"a"}, absl::Hours(1), absl::Hours(1), {"me"}));
  const JobId id = w_.Submit(Within("lab", "x"));
  Set(Of("lab", {"a"}, absl::Hours(1), absl::Hours(1), {"ann"}));
  EXPECT_EQ(w_.State(id), JOB_STATE_PAUSED);
  EXPECT_THAT(w_.Get(id).reason(), HasSubstr("its reservation lab is no longer for its user or project"));
}

TEST_F(ReservationWorld, ItIsDeletedWhenNoJobRunsInIt) {
  w_.Return(Hello("a", 1));
  Set(Of("lab", {"a"}, absl::ZeroDuration(), absl::Hours(1), {"me"}));
  const JobId runs = w_.Submit(Within("lab", "runs")), waits = w_.Submit(Within("lab", "waits"));
  const JobId outside = w_.Submit(Gang("outside", 1));
  EXPECT_EQ(w_.Do(DeleteReservation{"lab"}).status.message(),
            "job " + runs.value() + " runs in reservation lab: pause or cancel such jobs first");
  w_.RunAll(runs);
  w_.Do(CancelJob{runs});
  EXPECT_TRUE(w_.Do(DeleteReservation{"lab"}).status.ok());
  EXPECT_EQ(w_.State(waits), JOB_STATE_PAUSED);
  EXPECT_THAT(w_.Get(waits).reason(), HasSubstr("its reservation lab was deleted"));
  w_.EndAll(runs);
  EXPECT_EQ(w_.State(outside), JOB_STATE_STARTING);
  EXPECT_TRUE(w_.Do(DeleteReservation{"lab"}).status.ok()) << "a retry";
  EXPECT_EQ(w_.rows.count("reservation/lab"), 0u);
}

TEST_F(ReservationWorld, DeletingAWindowLetsJobsStartAtOnce) {
  w_.Return(Hello("a", 1));
  Set(Of("maint", {"a"}, absl::Hours(1), absl::Hours(1)));
  const JobId id = w_.Submit(Gang("x", 1));
  ASSERT_EQ(w_.State(id), JOB_STATE_QUEUED);
  w_.Do(DeleteReservation{"maint"});
  EXPECT_EQ(w_.State(id), JOB_STATE_STARTING);
  EXPECT_THAT(w_.events, Contains("reservation.deleted"));
}

TEST_F(ReservationWorld, ItSurvivesARestartAndIsDeletedAWeekAfterItsEnd) {
  w_.Return(Hello("a", 1));
  Set(Of("lab", {"a"}, absl::Hours(1), absl::Hours(1), {"me"}));
  const JobId id = w_.Submit(Within("lab", "x"));
  w_.clock.Advance(absl::Minutes(90));  // the coordinator was down when it began
  w_.Restart();
  w_.Return(Hello("a", 1));
  ASSERT_EQ(w_.State(id), JOB_STATE_STARTING);
  w_.RunAll(id);
  w_.clock.Advance(absl::Hours(1));  // and when it ended
  w_.Restart();
  EXPECT_EQ(w_.State(id), JOB_STATE_STOPPING);
  w_.Return(Hello("a", 1));
  EXPECT_EQ(w_.State(id), JOB_STATE_PAUSED);
  EXPECT_EQ(w_.core->ListReservations().at(0).state(), RESERVATION_STATE_ENDED);
  w_.clock.Advance(7 * kDay);
  w_.Pass(absl::Minutes(1));
  EXPECT_TRUE(w_.core->ListReservations().empty());
  EXPECT_EQ(w_.rows.count("reservation/lab"), 0u);
}

// The steady clock, by which the coordinator wakes up, knows nothing of it.
TEST_F(ReservationWorld, AClockThatIsSetIsNoticedWithinAMinute) {
  w_.Return(Hello("a", 1));
  Set(Of("lab", {"a"}, absl::Hours(5), absl::Hours(1), {"me"}));
  const JobId id = w_.Submit(Within("lab", "x"));
  w_.clock.JumpWall(absl::Hours(5));
  w_.Pass(absl::Minutes(1));
  EXPECT_EQ(w_.State(id), JOB_STATE_STARTING);
  w_.clock.JumpWall(absl::Hours(-5));
  w_.Pass(absl::Minutes(1));
  EXPECT_EQ(w_.core->ListReservations().at(0).state(), RESERVATION_STATE_ACTIVE) << "it has begun";
}

TEST_F(ReservationWorld, WhatIsWrongIsRefused) {
  w_.Return(Hello("a", 1));
  w_.Return(Hello("b", 1));
  Set(Of("first", {"a"}, absl::Hours(1), absl::Hours(1)));
  const auto refusal = [&](const Reservation& reservation) {
    return std::string(w_.Do(SetReservation{reservation}).status.message());
  };
  EXPECT_THAT(refusal(Of("A", {"a"}, kDay, kDay)), HasSubstr("the name of a reservation may have 1 to 40 characters"));
  EXPECT_EQ(refusal(Of("x", {"a"}, kDay, absl::ZeroDuration())), "a reservation begins before it ends");
  EXPECT_THAT(refusal(Of("x", {"a"}, -2 * kDay, kDay)), HasSubstr("has passed"));
  EXPECT_EQ(refusal(Of("x", {"a"}, kDay, 367 * kDay)), "a reservation lasts at most 366 days");
  EXPECT_EQ(refusal(Of("x", {}, kDay, kDay)), "a reservation has 1 to 5000 nodes");
  EXPECT_EQ(refusal(Of("x", {"c"}, kDay, kDay)), "no node c; muster nodes lists them");
  EXPECT_THAT(refusal(Of("x", {"b", "a"}, absl::Minutes(90), kDay)), HasSubstr("node a is in reservation first from "));
  EXPECT_EQ(refusal(Of("x", {"a"}, absl::Hours(2), kDay)), "") << "it begins when the first one ends";
  EXPECT_EQ(refusal(Of("y", {"b"}, absl::Minutes(90), kDay)), "");
  Reservation of_none = Of("z", {"b"}, 3 * kDay, kDay);
  of_none.add_projects("nlp");
  EXPECT_EQ(refusal(of_none), "there is no project nlp; muster quota lists them");
  of_none.clear_projects();
  of_none.set_note("two\nlines");
  EXPECT_THAT(refusal(of_none), HasSubstr("a note is one line"));
}

TEST_F(ReservationWorld, ANodeShowsItsCurrentOrNextReservation) {
  w_.Return(Hello("a", 1));
  w_.Return(Hello("b", 1));
  Set(Of("later", {"a"}, kDay, absl::Hours(1)));
  Set(Of("next", {"a"}, absl::Hours(1), absl::Hours(1)));
  EXPECT_EQ(w_.core->GetNode(NodeId("a"))->reservation().name(), "next");
  EXPECT_FALSE(w_.core->GetNode(NodeId("b"))->has_reservation());
  w_.Pass(absl::Hours(2));
  EXPECT_EQ(w_.core->GetNode(NodeId("a"))->reservation().name(), "later");
}

// The urgent job could have the only slot, but not as long as it may run.
TEST_F(ReservationWorld, NoJobIsPreemptedForOneThatWouldRunIntoAWindow) {
  WorldOptions options = AnyWorld();
  options.preempt_lower_priority = true;
  options.preemption_min_run = absl::ZeroDuration();
  World w(options);
  w.Return(Hello("a", 1));
  const JobId running = w.Submit(Gang("running", 1));
  w.ReportRank(running, 0, RANK_STATE_RUNNING);
  Reservation maint = Of("maint", {"a"}, absl::Hours(1), absl::Hours(1));
  *maint.mutable_start() = ToProto(w.clock.Read().wall + absl::Hours(1));
  *maint.mutable_end() = ToProto(w.clock.Read().wall + absl::Hours(2));
  ASSERT_TRUE(w.Do(SetReservation{maint}).status.ok());
  JobSpec urgent = Gang("urgent", 1);
  urgent.set_priority(9);
  w.Submit(urgent);
  EXPECT_EQ(w.State(running), JOB_STATE_RUNNING);
  urgent.set_time_limit("30m");
  w.Submit(urgent);
  EXPECT_EQ(w.State(running), JOB_STATE_STOPPING);
}

TEST_F(ReservationWorld, AResizedJobKeepsOffReservedNodes) {
  w_.Return(Hello("a", 1));
  const JobId id = RunOnOneSlot(Gang("elastic", 2));
  w_.Return(Hello("b", 1));
  Set(Of("maint", {"b"}, kDay, absl::Hours(1)));
  w_.Pass(absl::Hours(1));
  EXPECT_EQ(w_.State(id), JOB_STATE_RUNNING);
  w_.Do(DeleteReservation{"maint"});
  w_.Pass(absl::Hours(1));
  EXPECT_EQ(w_.State(id), JOB_STATE_STOPPING) << "to grow";
}

TEST_F(ReservationWorld, ManyJobsOfOneThatEndsArePausedInSeveralTicks) {
  constexpr size_t kRun = 200;
  w_.Return(Hello("a", kRun));
  Set(Of("lab", {"a"}, absl::ZeroDuration(), absl::Hours(2), {"me"}));
  std::vector<JobId> jobs;
  for (size_t i = 0; i < kRun + 100; ++i) jobs.push_back(w_.Submit(Within("lab", "x")));
  for (size_t i = 0; i < kRun; ++i) w_.RunAll(jobs[i]);
  w_.clock.Advance(absl::Hours(2));
  w_.Do(Tick{});
  const auto stopping = [&] {
    return std::count_if(jobs.begin(), jobs.end(), [&](const JobId& id) { return w_.State(id) == JOB_STATE_STOPPING; });
  };
  EXPECT_LT(stopping(), kRun) << "a transaction has a bound";
  w_.Pass(absl::Seconds(1));
  EXPECT_EQ(stopping(), kRun);
  for (size_t i = 0; i < kRun; ++i) w_.EndAll(jobs[i]);
  for (const JobId& id : jobs) EXPECT_EQ(w_.State(id), JOB_STATE_PAUSED);
}

TEST_F(ReservationWorld, OneThatWasPausedBeforeTheEndResumesWithoutIt) {
  w_.Return(Hello("a", 1));
  Set(Of("lab", {"a"}, absl::Hours(1), absl::Hours(1), {"me"}));
  const JobId waits = w_.Submit(Within("lab", "waits"));
  w_.Do(PauseJob{waits});
  w_.Pass(absl::Hours(2));
  w_.Do(ResumeJob{waits});
  EXPECT_EQ(w_.State(waits), JOB_STATE_STARTING) << w_.Get(waits).reason();
  EXPECT_EQ(w_.Get(waits).reservation(), "");
}

// While its jobs stop, it is known when their slots are free.
TEST_F(ReservationWorld, APredictionHoldsWhenTheReservationEnds) {
  w_.Return(Hello("a", 1));
  w_.Return(Hello("b", 1));
  w_.Return(Hello("c", 1));
  Set(Of("lab", {"a"}, absl::ZeroDuration(), absl::Hours(1), {"me"}));
  const JobId inside = w_.Submit(Within("lab", "inside")), earlier = w_.Submit(Gang("earlier", 1));
  w_.RunAll(inside), w_.RunAll(earlier);
  const JobId head = w_.Submit(Gang("head", 2)), endless = w_.Submit(Gang("endless", 1));
  const absl::Time predicted = FromProto(w_.Get(head).predicted_start());
  EXPECT_EQ(predicted, Now() + absl::Hours(1) + w_.options.timeouts.stop);
  w_.Pass(absl::Hours(1));
  ASSERT_EQ(w_.State(inside), JOB_STATE_STOPPING);
  EXPECT_EQ(w_.State(endless), JOB_STATE_QUEUED) << "it would take a slot of the head";
  EXPECT_EQ(FromProto(w_.Get(head).predicted_start()), predicted);
  w_.EndAll(inside);
  EXPECT_EQ(w_.State(head), JOB_STATE_STARTING);
}

TEST_F(ReservationWorld, AChangeLeavesItsRunningJobsInIt) {
  w_.Return(Hello("a", 1));
  w_.Return(Hello("b", 1));
  Reservation lab = Of("lab", {"a", "b"}, absl::ZeroDuration(), absl::Hours(2), {"me"});
  Set(lab);
  const JobId id = w_.Submit(Within("lab", "x"));
  w_.RunAll(id);
  const std::string runs = "job " + id.value() + " runs in reservation lab";
  Reservation later = lab;
  *later.mutable_start() = ToProto(Now() + absl::Hours(1));
  EXPECT_EQ(w_.Do(SetReservation{later}).status.message(),
            runs + ", which would begin later: pause or cancel such jobs first");
  Reservation smaller = lab;
  smaller.clear_nodes();
  smaller.add_nodes(NodeOf(id) == "a" ? "b" : "a");
  EXPECT_EQ(w_.Do(SetReservation{smaller}).status.message(),
            runs + " on " + NodeOf(id) + ", which it would lose: pause or cancel such jobs first");
  Reservation own = lab;
  own.clear_nodes();
  own.add_nodes(NodeOf(id));
  Set(own);
  w_.clock.JumpWall(absl::Hours(-1));
  own.set_note("the clock was wrong");
  Set(own);
  EXPECT_EQ(w_.core->ListReservations().at(0).state(), RESERVATION_STATE_ACTIVE) << "it has begun";
  EXPECT_EQ(w_.State(id), JOB_STATE_RUNNING);
}

TEST_F(ReservationWorld, OneThatAWrongClockEndedIsToComeAgain) {
  w_.Return(Hello("a", 1));
  Set(Of("maint", {"a"}, absl::Hours(1), absl::Hours(1)));
  w_.clock.JumpWall(absl::Hours(5));
  w_.Pass(absl::Minutes(1));
  ASSERT_EQ(w_.core->ListReservations().at(0).state(), RESERVATION_STATE_ENDED);
  w_.clock.JumpWall(absl::Hours(-5));
  w_.Pass(absl::Minutes(1));
  EXPECT_EQ(w_.core->ListReservations().at(0).state(), RESERVATION_STATE_INACTIVE);
  EXPECT_EQ(w_.State(w_.Submit(Gang("endless", 1))), JOB_STATE_QUEUED);
}

TEST_F(ReservationWorld, OneThatAWrongClockEndedDoesNotComeAgainWhereAnotherWasSetSince) {
  w_.Return(Hello("a", 1));
  Set(Of("maint", {"a"}, absl::Hours(1), absl::Hours(7)));
  w_.clock.JumpWall(absl::Hours(8));
  w_.Pass(absl::Minutes(1));
  Set(Of("lab", {"a"}, absl::Hours(-1), absl::Hours(2), {"me"}));
  w_.clock.JumpWall(absl::Hours(-2));
  w_.Pass(absl::Minutes(1));
  const auto state_of = [&](const std::string& name) {
    for (const Reservation& reservation : w_.core->ListReservations()) {
      if (reservation.name() == name) return reservation.state();
    }
    return RESERVATION_STATE_UNSPECIFIED;
  };
  EXPECT_EQ(state_of("maint"), RESERVATION_STATE_ENDED) << "lab begins before maint would end";
  EXPECT_EQ(state_of("lab"), RESERVATION_STATE_ACTIVE);
  ASSERT_TRUE(w_.Do(DeleteReservation{"lab"}).status.ok());
  w_.Pass(absl::Minutes(1));
  EXPECT_EQ(state_of("maint"), RESERVATION_STATE_ACTIVE);
}

TEST_F(ReservationWorld, AClockThatIsAMonthAheadDeletesNone) {
  w_.Return(Hello("a", 1));
  Set(Of("maint", {"a"}, absl::Hours(1), absl::Hours(1)));
  w_.clock.JumpWall(30 * kDay);
  w_.Pass(absl::Minutes(2));
  w_.Restart();
  w_.Pass(absl::Minutes(2));
  ASSERT_EQ(w_.core->ListReservations().at(0).state(), RESERVATION_STATE_ENDED);
  w_.clock.JumpWall(-30 * kDay);
  w_.Pass(absl::Minutes(1));
  ASSERT_EQ(w_.core->ListReservations().size(), 1u);
  EXPECT_EQ(w_.core->ListReservations().at(0).state(), RESERVATION_STATE_INACTIVE);
  EXPECT_EQ(w_.State(w_.Submit(Gang("endless", 1))), JOB_STATE_QUEUED);
}

// A coordinator that is restarted every few days sees none for a week.
TEST_F(ReservationWorld, OneThatEndedAWeekAgoGivesWayToANewOne) {
  w_.Return(Hello("a", 1));
  const auto set = [&](int number) {
    return w_.Do(SetReservation{Of(absl::StrCat("r-", number), {"a"}, number * kDay, absl::Hours(1))}).status;
  };
  for (int number = 1; number <= 64; ++number) ASSERT_TRUE(set(number).ok());
  EXPECT_EQ(set(65).code(), absl::StatusCode::kResourceExhausted);
  for (int days = 0; days < 9; days += 3) {
    w_.Pass(3 * kDay);
    w_.Restart();
  }
  ASSERT_EQ(w_.core->ListReservations().size(), 64u);
  EXPECT_TRUE(set(65).ok());
  EXPECT_EQ(w_.rows.count("reservation/r-1"), 0u) << "it ended more than a week ago";
  EXPECT_EQ(set(66).code(), absl::StatusCode::kResourceExhausted) << "r-2 ended less than a week ago";
}

TEST_F(ReservationWorld, ANodeThatWasForgottenMayStay) {
  w_.Return(Hello("a", 1));
  w_.Return(Hello("b", 1));
  Set(Of("maint", {"a", "b"}, absl::Hours(1), absl::Hours(1)));
  w_.Do(NodeDisconnected{NodeId("b"), Incarnation("i1")});
  w_.Pass(absl::Minutes(30));
  ASSERT_TRUE(w_.Do(ForgetNode{NodeId("b")}).status.ok());
  Set(Of("maint", {"a", "b"}, absl::Hours(1), absl::Hours(6)));
  EXPECT_EQ(w_.Do(SetReservation{Of("other", {"b"}, kDay, kDay)}).status.message(),
            "no node b; muster nodes lists them");
}

TEST_F(ReservationWorld, OneThatEndsWithItsReservationDoesNotOverlapTheNext) {
  w_.Return(Hello("a", 1));
  Set(Of("lab", {"a"}, absl::ZeroDuration(), absl::Hours(1), {"me"}));
  const JobId inside = w_.Submit(Within("lab", "inside"));
  Set(Of("soon", {"a"}, absl::Hours(1), absl::Hours(1)));
  Set(Of("later", {"a"}, absl::Hours(3), absl::Hours(1)));
  const std::vector<Reservation> all = w_.core->ListReservations();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].overlapping_jobs_size(), 0);
  EXPECT_THAT(all[1].overlapping_jobs(), ElementsAre(inside.value())) << "it may take time to stop";
  EXPECT_EQ(all[2].overlapping_jobs_size(), 0);
}

TEST_F(ReservationWorld, AJobIsNotStoppedToGrowForSlotsThatAWaitingJobCouldHave) {
  w_.Return(Hello("a", 1));
  const JobId id = RunOnOneSlot(Gang("elastic", 2));
  Set(Of("maint", {"a"}, kDay, absl::Hours(1)));
  w_.Submit(Gang("endless", 2));  // not before the maintenance is over
  w_.Submit(Limited("timed", "30m", 2));
  w_.Return(Hello("b", 1));
  w_.Pass(absl::Hours(1));
  EXPECT_EQ(w_.State(id), JOB_STATE_RUNNING) << "timed could have both slots";
}

// It would wait behind the other, which needs all slots when the maintenance is over.
TEST_F(ReservationWorld, AJobIsNotStoppedToGrowBeforeOneThatWaitsForAWindowToEnd) {
  for (const char* node : {"a", "b", "c"}) w_.Return(Hello(node, 1));
  const JobId other = w_.Submit(Gang("other", 2));
  w_.RunAll(other);
  const JobId id = RunOnOneSlot(Gang("elastic", 2));
  Set(Of("maint", {"a", "b"}, 7 * kDay, absl::Hours(1)));
  JobSpec wide = Gang("wide", 3);
  wide.set_priority(9);
  w_.Submit(wide);
  w_.Finish(other);
  w_.Pass(absl::Hours(1));
  EXPECT_EQ(w_.State(id), JOB_STATE_RUNNING);
}

TEST_F(ReservationWorld, OneWhoseUserMayNoLongerUseItIsNotStoppedToGrow) {
  w_.Return(Hello("a", 1));
  Set(Of("lab", {"a"}, absl::ZeroDuration(), 7 * kDay, {"me"}));
  const JobId id = RunOnOneSlot(Within("lab", "elastic", 2));
  w_.Return(Hello("b", 1));
  Set(Of("lab", {"a", "b"}, absl::ZeroDuration(), 7 * kDay, {"ann"}));
  w_.Pass(absl::Hours(1));
  EXPECT_EQ(w_.State(id), JOB_STATE_RUNNING);
}

TEST_F(ReservationWorld, APauseThatIsOverdueKeepsItsReason) {
  w_.Return(Hello("a", 1));
  const JobId id = w_.Submit(Gang("x", 1));
  w_.RunAll(id);
  w_.Do(PauseJob{id});
  w_.Pass(absl::Hours(1));
  ASSERT_THAT(w_.Get(id).reason(), HasSubstr("overdue"));
  w_.EndAll(id);
  EXPECT_EQ(w_.Get(id).reason(), "paused by its user; to continue: muster resume " + id.value());
}

TEST_F(ReservationWorld, ADeletedProjectMayStay) {
  w_.Return(Hello("a", 1));
  Project nlp;
  nlp.set_name("nlp");
  ASSERT_TRUE(w_.Do(SetProject{nlp}).status.ok());
  Reservation lab = Of("lab", {"a"}, absl::Hours(1), absl::Hours(1));
  lab.add_projects("nlp");
  Set(lab);
  ASSERT_TRUE(w_.Do(DeleteProject{"nlp"}).status.ok());
  lab.set_note("for nlp");
  Set(lab);
}

TEST_F(ReservationWorld, NoOtherIsSetBeforeOneThatHasBegunByAClockThatWasSetBack) {
  w_.Return(Hello("a", 1));
  Set(Of("lab", {"a"}, absl::ZeroDuration(), absl::Hours(1), {"me"}));
  w_.clock.JumpWall(absl::Hours(-5));
  EXPECT_THAT(
      std::string(w_.Do(SetReservation{Of("now", {"a"}, absl::ZeroDuration(), absl::Hours(1))}).status.message()),
      HasSubstr("node a is in reservation lab from "));
}

TEST_F(ReservationWorld, APlanSaysThatItBeginsLater) {
  w_.Return(Hello("a", 1));
  Set(Of("lab", {"a"}, absl::Hours(1), absl::Hours(1), {"me"}));
  const Core::Placing placing = w_.core->WouldPlace(Within("lab", "x"), 0, true);
  EXPECT_TRUE(placing.nodes.empty());
  EXPECT_EQ(placing.reason, "reservation lab begins in 1h");
  EXPECT_FALSE(placing.slots.ranks.empty()) << "a plan is made for them";
}

// Between them it could not end: to it they are one, of which the first is named.
TEST_F(ReservationWorld, WindowsThatAreTooNearAreOne) {
  w_.Return(Hello("a", 1));
  for (int week = 1; week <= 52; ++week) {
    Set(Of(absl::StrCat("week-", week), {"a"}, week * 7 * kDay, absl::Hours(4)));
  }
  const JobId endless = w_.Submit(Gang("endless", 1));
  EXPECT_EQ(w_.State(w_.Submit(Limited("day", "24h"))), JOB_STATE_STARTING);
  EXPECT_THAT(w_.Get(endless).reason(), HasSubstr("without a: reservation week-1 begins in 168h, a time_limit that "
                                                  "ends before would do"));
  EXPECT_THAT(w_.Get(endless).reason(), Not(HasSubstr("week-2")));
  EXPECT_EQ(FromProto(w_.Get(endless).predicted_start()), Now() + 52 * 7 * kDay + absl::Hours(4));
}

}  // namespace
}  // namespace muster::core
