// Jobs of several ranks, and many jobs at once.
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "coordinator/core/core.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

TEST(Gangs, StartTogetherOrNotAtAll) {
  World w(AnyWorld());
  const JobId id = w.Submit(Gang("g", 3));
  w.Do(NodeConnected{Hello("a", 1)});
  EXPECT_EQ(w.Get(id).reason(),
            "1st in the queue: can never start on these nodes: needs 3 slots on cpu, the nodes have 1 in all, 1 free; "
            "at most 1 rank would fit");
  w.Do(NodeConnected{Hello("b", 2)});
  ASSERT_EQ(w.State(id), JOB_STATE_STARTING);
  EXPECT_EQ(w.core->DesiredFor(NodeId("b")).ranks_size(), 2);
  EXPECT_EQ(w.core->DesiredFor(NodeId("b")).ranks(1).run().schedule_digest(), "digest 0");
  EXPECT_EQ(w.core->DesiredFor(NodeId("a")).ranks(0).run().role().rank(), 2u);
  w.ReportRank(id, 0, RANK_STATE_RUNNING);
  w.ReportRank(id, 2, RANK_STATE_RUNNING);
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING) << "rank 1 does not run yet";
  w.ReportRank(id, 1, RANK_STATE_RUNNING);
  EXPECT_EQ(w.State(id), JOB_STATE_RUNNING);
  for (uint32_t rank = 0; rank < 3; ++rank) w.FinishRank(id, rank);
  EXPECT_EQ(w.State(id), JOB_STATE_COMPLETED);
}

TEST(Gangs, ARankThatFinishesEarlyDoesNotKeepTheOthersFromRunning) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 2)});
  const JobId id = w.Submit(Gang("g", 2));
  w.FinishRank(id, 0);  // so quick that it was never reported as running
  w.ReportRank(id, 1, RANK_STATE_RUNNING);
  EXPECT_EQ(w.State(id), JOB_STATE_RUNNING);
  w.FinishRank(id, 1);
  EXPECT_EQ(w.State(id), JOB_STATE_COMPLETED);
}

TEST(Gangs, TheFirstFaultStopsTheOthersAndIsTheOnlyOneReported) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 2)});
  w.Do(NodeConnected{Hello("b", 1)});
  const JobId id = w.Submit(Gang("g", 3));
  for (uint32_t rank = 0; rank < 3; ++rank) w.ReportRank(id, rank, RANK_STATE_RUNNING);
  w.events.clear();
  w.ReportRank(id, 1, RANK_STATE_EXITED, RankExit::FAILED);
  EXPECT_EQ(w.State(id), JOB_STATE_STOPPING);
  const Desired desired = w.core->DesiredFor(NodeId("b"));
  ASSERT_TRUE(desired.ranks(0).has_stop());
  EXPECT_FALSE(desired.ranks(0).stop().checkpoint_first()) << "they wait for a peer that is gone";
  EXPECT_EQ(desired.ranks(0).stop().deadline().seconds(), 2) << "and have nothing to save";
  EXPECT_EQ(w.core->DesiredFor(NodeId("a")).ranks_size(), 1) << "rank 1 has ended";
  w.ReportRank(id, 0, RANK_STATE_EXITED, RankExit::FAILED);  // its collective broke
  w.ReportRank(id, 2, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  EXPECT_EQ(w.Get(id).failure().rank(), 1u);
  EXPECT_EQ(w.Get(id).restarts(), 1u);
  EXPECT_EQ(w.Newest(id).reason(), END_REASON_FAILED);
  EXPECT_EQ(std::count(w.events.begin(), w.events.end(), "rank.exited"), 1);
}

TEST(Gangs, ALostNodeStopsTheRanksElsewhereFirst) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 1)});
  w.Do(NodeConnected{Hello("b", 1)});
  w.Do(NodeConnected{Hello("c", 2)});
  w.Do(DrainNode{NodeId("c")});
  const JobId id = w.Submit(Gang("g", 2));
  for (uint32_t rank = 0; rank < 2; ++rank) w.ReportRank(id, rank, RANK_STATE_RUNNING);
  w.Do(NodeDisconnected{NodeId("b"), Incarnation("i1")});
  w.clock.Advance(absl::Seconds(11));
  w.Do(UndrainNode{NodeId("c")});
  w.Do(Tick{});
  EXPECT_EQ(w.State(id), JOB_STATE_STOPPING) << "the rank on a still runs";
  EXPECT_EQ(w.Newest(id).number(), 1u) << "no second generation beside it";
  w.ReportRank(id, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.Newest(id).reason(), END_REASON_LOST);
  w.PassBackoff();
  EXPECT_EQ(w.Newest(id).number(), 2u);
  EXPECT_EQ(w.Newest(id).ranks(1).node(), "c");
}

TEST(Gangs, ACancelledJobDoesNotWaitForALostNodeForEver) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 1)});
  w.Do(NodeConnected{Hello("b", 1)});
  const JobId id = w.Submit(Gang("g", 2));
  w.Do(NodeDisconnected{NodeId("b"), Incarnation("i1")});
  w.Do(CancelJob{id});
  w.ReportRank(id, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(id), JOB_STATE_STOPPING);
  w.clock.Advance(absl::Seconds(11));
  w.Do(Tick{});
  EXPECT_EQ(w.State(id), JOB_STATE_CANCELLED);
}

TEST(Gangs, ALeavingWorkerIsDrainedAndNotUsedAgainUntilItReturns) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 1)});
  w.Do(NodeConnected{Hello("b", 1)});
  const JobId id = w.Submit(Gang("g", 2));
  for (uint32_t rank = 0; rank < 2; ++rank) w.ReportRank(id, rank, RANK_STATE_RUNNING);
  NodeObserved leaving{NodeId("a"), Incarnation("i1"), {}};  // SIGTERM to the worker daemon
  leaving.observed.set_leaving(true);
  w.Do(leaving);
  EXPECT_EQ(w.State(id), JOB_STATE_STOPPING);
  EXPECT_TRUE(w.core->DesiredFor(NodeId("b")).ranks(0).stop().checkpoint_first());
  w.Restart();
  w.Do(NodeConnected{Hello("b", 1)});
  w.ReportRank(id, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  w.ReportRank(id, 1, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  EXPECT_EQ(w.Newest(id).reason(), END_REASON_DRAINED);
  EXPECT_EQ(w.Get(id).restarts(), 0u);
  w.PassBackoff();
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED) << "a still leaves";
  w.ReportNothing("b");
  w.Return(Hello("a", 1, "i2"));
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING);
}

TEST(Gangs, AnUnrequestedExitBeforeTheLastStepIsAFault) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 1)});
  const JobId id = w.Submit(Gang("g", 1, /*max_restarts=*/1));
  w.ReportRank(id, 0, RANK_STATE_RUNNING);
  w.ReportRank(id, 0, RANK_STATE_EXITED, RankExit::STOPPED);  // an outside SIGTERM to the trainer
  EXPECT_EQ(w.Newest(id).reason(), END_REASON_FAILED);
  EXPECT_EQ(w.Get(id).restarts(), 1u);
  w.PassBackoff();
  w.ReportRank(id, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(id), JOB_STATE_FAILED) << "it does not restart forever";
}

TEST(Gangs, ARankThatNeverArrivesAtTheRendezvousIsNamed) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 2)});
  w.Do(NodeConnected{Hello("b", 2)});
  const JobId id = w.Submit(Gang("g", 4, /*max_restarts=*/1));
  EXPECT_EQ(w.core->Missing(id), "") << "no rank has arrived, so none is missing";
  for (const uint32_t rank : {0u, 1u, 3u}) {
    EXPECT_TRUE(w.Do(RankArrived{{id, 1, rank}}).status.ok());
    EXPECT_TRUE(w.core->HasArrived({id, 1, rank}));
  }
  EXPECT_FALSE(w.core->HasArrived({id, 1, 2}));
  EXPECT_EQ(w.core->Missing(id), "rank 2 on b has not arrived yet");
  w.clock.Advance(absl::Minutes(5));
  w.Do(Tick{});
  EXPECT_EQ(w.State(id), JOB_STATE_STOPPING);
  EXPECT_EQ(w.Get(id).failure().exit().message(), "did not arrive at the rendezvous within 5m: rank 2 on b");
  EXPECT_EQ(w.Get(id).failure().rank(), 2u);
  EXPECT_EQ(w.Get(id).failure().node(), "b");
  for (uint32_t rank = 0; rank < 4; ++rank) w.ReportRank(id, rank, RANK_STATE_EXITED, RankExit::STOPPED);
  w.PassBackoff();
  // Arrivals at one generation's rendezvous do not count for the next.
  ASSERT_EQ(w.Newest(id).number(), 2u);
  EXPECT_FALSE(w.core->HasArrived({id, 2, 0}));
  EXPECT_EQ(w.Do(RankArrived{{id, 1, 0}}).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(w.Do(RankArrived{{id, 2, 4}}).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(w.Do(RankArrived{{JobId("other"), 1, 0}}).status.code(), absl::StatusCode::kFailedPrecondition);
  // All have arrived and none runs, so all are named.
  for (uint32_t rank = 0; rank < 4; ++rank) w.Do(RankArrived{{id, 2, rank}});
  EXPECT_EQ(w.core->Missing(id), "");
  w.clock.Advance(absl::Minutes(5));
  w.Do(Tick{});
  EXPECT_EQ(w.Get(id).failure().exit().message(),
            "did not finish a first step within 5m: rank 0 on a, rank 1 on a, rank 2 on b and 1 more");
}

TEST(Gangs, ARefusedJobFailsWithoutAnotherAttempt) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 2)});
  const JobId id = w.Submit(Gang("g", 2));
  w.ReportRank(id, 1, RANK_STATE_EXITED, RankExit::REFUSED);
  w.ReportRank(id, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(id), JOB_STATE_FAILED);
  EXPECT_EQ(w.Get(id).restarts(), 0u);
  EXPECT_EQ(w.Get(id).failure().exit().cause(), RankExit::REFUSED);
}

// A scheduling pass costs time proportional to the cluster, and many nodes may connect at once.
TEST(Gangs, OneSchedulingPassServesAllReportsOfATick) {
  World w(AnyWorld());
  const JobId id = w.Submit(Gang("g", 3));
  EXPECT_FALSE(w.IsTickDue());
  w.Alone(NodeConnected{Hello("a", 1)});
  w.Alone(NodeConnected{Hello("b", 2)});
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  ASSERT_TRUE(w.IsTickDue());
  w.Do(Tick{});
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING);
  EXPECT_FALSE(w.IsTickDue());
}

TEST(Gangs, ProgressReportsDoNotCauseSchedulingPasses) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 1)});
  const JobId id = w.Submit(Gang("trains", 1)), waits = w.Submit(Gang("waits", 1));
  w.ReportRank(id, 0, RANK_STATE_RUNNING);
  const auto report = [&](RankState state, uint64_t step) {
    NodeObserved event{NodeId("a"), Incarnation("i1"), {}};
    ObservedRank& rank = *event.observed.add_ranks();
    rank.mutable_key()->set_job(id.value());
    rank.mutable_key()->set_generation(1);
    rank.set_state(state);
    rank.set_step(step);
    if (state == RANK_STATE_EXITED) rank.mutable_exit()->set_cause(RankExit::COMPLETED);
    w.Alone(event);
  };
  for (uint64_t step = 1; step <= 3; ++step) {
    report(RANK_STATE_RUNNING, step);
    EXPECT_FALSE(w.IsTickDue()) << step;
  }
  report(RANK_STATE_EXITED, 3);
  EXPECT_TRUE(w.IsTickDue()) << "its slot is free";
  w.Do(Tick{});
  EXPECT_EQ(w.State(waits), JOB_STATE_STARTING);
}

// Work that did not fit into one commit is not forgotten when a report changes nothing.
TEST(Gangs, AReportBetweenTwoPassesDoesNotEndThem) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 1)});
  const JobId trains = w.Submit(Gang("trains", 1));
  w.ReportRank(trains, 0, RANK_STATE_RUNNING);
  std::vector<JobId> waiting;
  for (int i = 0; i < 60; ++i) waiting.push_back(w.Submit(Gang(absl::StrCat("j", i), 1)));
  const auto started = [&] {
    return std::count_if(waiting.begin(), waiting.end(),
                         [&](const JobId& id) { return w.State(id) == JOB_STATE_STARTING; });
  };
  w.Alone(NodeConnected{Hello("b", 60)});
  w.held = true;
  w.Do(Tick{});
  while (!w.requested.empty()) {
    const RequestPlan request = w.requested.begin()->second;
    w.requested.erase(w.requested.begin());
    w.Alone(PlanReady{request.key, w.Make(request)});
  }
  w.Alone(Tick{});
  ASSERT_GT(started(), 0);
  ASSERT_LT(started(), 60);
  NodeObserved quiet{NodeId("a"), Incarnation("i1"), {}};
  w.Alone(quiet);
  for (int i = 0; i < 60 && w.IsTickDue(); ++i) {
    w.Alone(Tick{});
    w.Alone(quiet);
  }
  EXPECT_EQ(started(), 60);
}

TEST(Gangs, ALargeJobIsNotOvertakenBySmallOnes) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 2)});
  const JobId first = w.Submit(Gang("first", 1)), large = w.Submit(Gang("large", 2)), small = w.Submit(Gang("s", 1));
  EXPECT_EQ(w.State(small), JOB_STATE_QUEUED);
  EXPECT_EQ(w.Get(small).reason(),
            absl::StrCat("2nd in the queue: waiting behind ", large.value(), ", for which 2 slots are reserved"));
  // Also not while a node is away for a moment, or just after a restart of the coordinator.
  w.Do(NodeConnected{Hello("b", 1)});
  EXPECT_EQ(w.State(large), JOB_STATE_STARTING);
  EXPECT_EQ(w.State(small), JOB_STATE_QUEUED);
  const JobId next = w.Submit(Gang("next", 3)), last = w.Submit(Gang("last", 1));
  w.FinishRank(first, 0);
  EXPECT_EQ(w.State(small), JOB_STATE_STARTING);
  w.Do(NodeDisconnected{NodeId("b"), Incarnation("i1")});
  w.FinishRank(small, 0);
  EXPECT_EQ(w.State(next), JOB_STATE_QUEUED);
  EXPECT_EQ(w.State(last), JOB_STATE_QUEUED) << w.Get(last).reason();
}

TEST(Gangs, OneDeviceDoesNotHoldBackTheOther) {
  World w(AnyWorld());
  Node gpu = Hello("g", 1);
  gpu.mutable_slots(0)->set_device(DEVICE_CUDA);
  w.Do(NodeConnected{gpu});
  w.Do(NodeConnected{Hello("a", 1)});
  const JobId running = w.Submit(Gang("running", 1));
  EXPECT_EQ(w.Newest(running).device(), DEVICE_CUDA) << "auto";
  const JobId waits = w.Submit(Gang("waits", 1));
  JobSpec cpu = Gang("cpu", 1);
  cpu.mutable_resources()->set_device(DEVICE_CPU);
  const JobId other = w.Submit(cpu);
  EXPECT_EQ(w.State(waits), JOB_STATE_QUEUED);
  EXPECT_EQ(w.State(other), JOB_STATE_STARTING);
  // After a restart the CPU node is back first: a job for any device still waits for the GPUs that it would have used.
  w.Do(CancelJob{other});
  w.ReportRank(other, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  w.Restart();
  w.Do(NodeConnected{Hello("a", 1)});
  EXPECT_EQ(w.State(waits), JOB_STATE_QUEUED);
}

TEST(Gangs, AnOverdueStopIsReported) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 2)});
  const JobId id = w.Submit(Gang("g", 2));
  w.Do(CancelJob{id});
  w.ReportRank(id, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  w.clock.Advance(absl::Seconds(59));
  w.Do(Tick{});
  EXPECT_EQ(w.Get(id).reason(), "cancelled by its user");
  w.clock.Advance(absl::Seconds(1));
  EXPECT_EQ(w.Do(Tick{}).events.size(), 1u);
  EXPECT_TRUE(absl::StrContains(w.Get(id).reason(), "the stop is overdue, still running: rank 1 on a"))
      << w.Get(id).reason();
  EXPECT_TRUE(w.Do(Tick{}).events.empty()) << "reported once, until it is asked again";
  ASSERT_TRUE(w.core->NextTick().has_value());
  EXPECT_GE(*w.core->NextTick() - w.clock.Read().steady, absl::Minutes(1));
}

TEST(Gangs, AJobThatCannotBeLaidOutFails) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 1)});
  const JobId id = w.Submit(Gang("bad", 1)), next = w.Submit(Gang("good", 1));
  EXPECT_EQ(w.State(id), JOB_STATE_FAILED);
  EXPECT_TRUE(absl::StrContains(w.Get(id).reason(), "not in this build")) << w.Get(id).reason();
  EXPECT_EQ(w.State(next), JOB_STATE_STARTING);
  w.Restart();
  EXPECT_EQ(w.State(id), JOB_STATE_FAILED);
}

TEST(Gangs, RowsOfLargeGenerationsStaySmall) {
  constexpr uint32_t kRanks = 4096;
  World w(AnyWorld());
  const std::string uuid = "0f8fad5b-d9cb-469f-a165-70867728950e";
  w.Do(NodeConnected{Hello(uuid, kRanks)});
  const JobId id = w.Submit(Gang("g", kRanks));
  NodeObserved ended{NodeId(uuid), Incarnation("i1"), {}};
  for (uint32_t number = 0; number < kRanks; ++number) {
    ObservedRank& rank = *ended.observed.add_ranks();
    rank.mutable_key()->set_job(id.value());
    rank.mutable_key()->set_generation(1);
    rank.mutable_key()->set_rank(number);
    rank.set_state(RANK_STATE_EXITED);
    rank.mutable_exit()->set_cause(RankExit::FAILED);
    rank.mutable_exit()->set_message(std::string(1'000, 'x'));
    for (int i = 0; i < 30 && number < 9; ++i) {
      rank.mutable_exit()->add_last_lines(std::string(999, 'y') + "\xc3\xa4");
    }
  }
  for (const RowChange& row : w.Do(ended).rows) EXPECT_LT(row.value->size(), 512u * 1024) << row.key;
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  EXPECT_EQ(w.Get(id).failure().exit().last_lines_size(), 20);
  w.Restart();  // half a character would not parse
}

// The largest that a coordinator accepts, each rank on a node of its own with the longest name that a worker may have.
TEST(Gangs, AGenerationOfAsManyNodesFitsIntoARow) {
  constexpr uint32_t kRanks = 4096;
  WorldOptions options = AnyWorld();
  World w(std::move(options));
  const auto name = [](uint32_t node) {
    // Hexadecimal digits that do not repeat, as those of a container.
    std::string digits;
    for (uint64_t word = 0; digits.size() < 64; ++word) {
      uint64_t x = (uint64_t{node} << 8 | word) * 0x9e3779b97f4a7c15;
      x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9;
      absl::StrAppend(&digits, absl::Hex(x ^ (x >> 27), absl::kZeroPad16));
    }
    return digits.substr(0, 64);
  };
  for (uint32_t number = 0; number < kRanks; ++number) {
    Node node = Hello(name(number), 1);
    node.mutable_slots(0)->set_memory_bytes(80 * kGiB + number);
    w.Alone(NodeConnected{node});
  }
  const Outcome started = w.Do(SubmitJob{"r", "me", Gang("g", kRanks), "s"});
  size_t largest = 0;
  const auto check = [&](const Outcome& out) {
    for (const RowChange& row : out.rows) {
      if (absl::StartsWith(row.key, "generation/")) largest = std::max(largest, row.value->size());
    }
  };
  check(started);
  const JobId id = started.job;
  ASSERT_EQ(w.State(id), JOB_STATE_STARTING) << w.Get(id).reason();
  EXPECT_GT(w.Newest(id).ByteSizeLong(), 300u * 1024);
  w.Do(CancelJob{id});
  // Some exits show what they add; all would take half a minute.
  const Generation placed = w.Newest(id);
  for (uint32_t number = 0; number < 256; ++number) {
    NodeObserved ended{NodeId(placed.ranks(static_cast<int>(number)).node()), Incarnation("i1"), {}};
    ObservedRank& seen = *ended.observed.add_ranks();
    seen.mutable_key()->set_job(id.value());
    seen.mutable_key()->set_generation(1);
    seen.mutable_key()->set_rank(number);
    seen.set_state(RANK_STATE_EXITED);
    seen.mutable_exit()->set_cause(RankExit::STOPPED);
    *seen.mutable_exit()->mutable_ended() = ToProto(w.clock.Read().wall + absl::Nanoseconds(number * 7919));
    check(w.Alone(ended));
  }
  EXPECT_GT(w.Newest(id).ByteSizeLong(), 384u * 1024) << "with all exits it would not fit as it is";
  EXPECT_LT(largest, 384u * 1024);
  const std::string before = w.Newest(id).SerializeAsString();
  w.Restart();
  EXPECT_EQ(w.Newest(id).SerializeAsString(), before);
}

// One event may concern more jobs than a commit may have keys; later ticks, due at once, do the rest.
TEST(Gangs, LargeEventsAreDoneInSeveralCommits) {
  World w;
  std::vector<JobId> ids;
  for (int i = 0; i < 120; ++i) ids.push_back(w.Submit(Spec("j")));
  const auto settle = [&] {
    for (int i = 0; i < 20 && w.core->NextTick() == w.clock.Read().steady; ++i) w.Do(Tick{});
  };
  const auto count = [&](JobState state) {
    const std::vector<Job> jobs = w.core->ListJobs(true);
    return std::count_if(jobs.begin(), jobs.end(), [&](const Job& job) { return job.state() == state; });
  };
  w.Do(NodeConnected{Hello("n", 120)});
  settle();
  EXPECT_EQ(count(JOB_STATE_STARTING), 120);
  NodeObserved all{NodeId("n"), Incarnation("i1"), {}};
  for (const JobId& id : ids) {
    ObservedRank& rank = *all.observed.add_ranks();
    rank.mutable_key()->set_job(id.value());
    rank.mutable_key()->set_generation(1);
    rank.set_state(RANK_STATE_RUNNING);
  }
  w.Do(all);
  settle();
  EXPECT_EQ(count(JOB_STATE_RUNNING), 120);
  w.Do(DrainNode{NodeId("n")});
  w.Restart();  // the remaining work follows from the rows
  settle();
  EXPECT_EQ(count(JOB_STATE_STOPPING), 120);
  w.clock.Advance(absl::Seconds(16));
  w.Do(Tick{});
  EXPECT_EQ(w.core->GetNode(NodeId("n"))->state(), NODE_STATE_LOST);
  EXPECT_GT(count(JOB_STATE_STOPPING), 0);
  w.Restart();
  settle();
  EXPECT_EQ(count(JOB_STATE_QUEUED), 120);
}

TEST(Gangs, AJobOfManyGenerationsIsDeletedInOneCommit) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  for (int i = 0; i < 120; ++i) {
    w.Do(PauseJob{id});
    w.Report(id, RANK_STATE_EXITED, RankExit::STOPPED);
    w.Do(ResumeJob{id});
    w.PassBackoff();
  }
  EXPECT_EQ(w.Newest(id).number(), 121u);
  w.Do(CancelJob{id});
  w.Report(id, RANK_STATE_EXITED, RankExit::STOPPED);
  w.Do(DeleteJob{id});
  EXPECT_EQ(w.rows.size(), 1u) << "only the node is left";
}

}  // namespace
}  // namespace muster::core
