// Detection of ranks that make no progress, and which rank is at fault.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "coordinator/core/core.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

constexpr uint32_t kRanks = 4;

// Four ranks on two nodes, all of them in step 11 of 100; a checkpoint every 100.
class Hangs : public testing::Test {
 protected:
  Hangs() {
    w_.Do(NodeConnected{Hello("a", 2)});
    w_.Do(NodeConnected{Hello("b", 2)});
    id_ = w_.Submit(Gang("g", kRanks));
    Run(id_);
    for (uint32_t rank = 0; rank < kRanks; ++rank) w_.RankProgress(id_, rank, 10, 0, 0, 0);
  }
  struct Page {
    uint64_t step, issued, completed;
    double stalled;
    bool frozen = false;
    std::optional<uint64_t> exchanges = 0;
  };
  void Report(const std::vector<Page>& pages) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      if (w_.State(id_) != JOB_STATE_RUNNING) return;
      const Page& page = pages[rank];
      w_.RankProgress(id_, rank, page.step, page.issued, page.completed, page.stalled, page.frozen, /*op=*/0,
                      /*op_step=*/0, page.exchanges);
    }
  }
  // Longer than any limit.
  void Run(const JobId& id) {
    w_.RunAll(id);
    Seconds(1000);
  }
  void Seconds(int seconds) { w_.clock.Advance(absl::Seconds(seconds)); }

  World w_{AnyWorld()};
  JobId id_;
};

TEST_F(Hangs, TheSlowestRankIsNamed) {
  const struct {
    const char* what;
    std::vector<Page> pages;
    uint32_t culprit;
  } kCases[] = {
      {"an earlier step", {{10, 9, 8, 31}, {10, 9, 8, 31}, {9, 9, 9, 31}, {10, 9, 8, 31}}, 2},
      {"fewer ops issued", {{10, 9, 8, 31}, {10, 3, 3, 31}, {10, 9, 8, 31}, {10, 9, 8, 31}}, 1},
      {"fewer ops completed", {{10, 9, 8, 31}, {10, 9, 8, 31}, {10, 9, 8, 31}, {10, 9, 4, 31}}, 3},
      {"its process does not run", {{10, 9, 8, 31}, {10, 10, 8, 31, true}, {10, 9, 8, 31}, {10, 9, 4, 31}}, 1},
      {"all but one wait in the first op", {{10, 1, 0, 31}, {10, 1, 0, 31}, {10, 1, 0, 31}, {10, 0, 0, 31}}, 3},
      {"fewer exchanges begun inside the op",
       {{10, 9, 8, 31, false, 3}, {10, 9, 8, 31, false, 3}, {10, 9, 8, 31, false, 2}, {10, 9, 8, 31, false, 3}},
       2},
      {"an earlier op, whatever it exchanged",
       {{10, 9, 8, 31, false, 1}, {10, 8, 7, 31, false, 5}, {10, 9, 8, 31, false, 1}, {10, 9, 8, 31, false, 1}},
       1},
      {"all alike", {{10, 9, 8, 31}, {10, 9, 8, 31}, {10, 9, 8, 31}, {10, 9, 8, 31}}, 0},
  };
  for (const auto& test : kCases) {
    w_.Do(CancelJob{id_});
    for (uint32_t rank = 0; rank < kRanks; ++rank) w_.ReportRank(id_, rank, RANK_STATE_EXITED, RankExit::STOPPED);
    id_ = w_.Submit(Gang("g", kRanks));
    Run(id_);
    Report(test.pages);
    EXPECT_EQ(w_.State(id_), JOB_STATE_STOPPING) << test.what;
    EXPECT_EQ(w_.Get(id_).failure().rank(), test.culprit) << test.what;
  }
}

TEST_F(Hangs, TheReportNamesRankNodeStepAndOp) {
  Report({{10, 20, 19, 31}, {10, 20, 19, 31}, {10, 13, 12, 31.5}, {10, 20, 19, 31}});
  ASSERT_EQ(w_.State(id_), JOB_STATE_STOPPING);
  const Failure failure = w_.Get(id_).failure();
  EXPECT_EQ(failure.rank(), 2u);
  EXPECT_EQ(failure.node(), "b");
  EXPECT_EQ(failure.step(), 11u);
  EXPECT_EQ(failure.op(), "Release u12");
  EXPECT_DOUBLE_EQ(failure.detected_seconds(), 31.5);
  EXPECT_EQ(failure.exit().cause(), RankExit::HUNG);
  EXPECT_EQ(failure.exit().message(), "rank 2 on b hung in step 11 at Release u12: no progress for 31 s");
  const Stop stop = w_.core->DesiredFor(NodeId("b")).ranks(0).stop();
  EXPECT_FALSE(stop.checkpoint_first());
  EXPECT_EQ(stop.deadline().seconds(), 2);
}

TEST_F(Hangs, TheReportNamesTheExchangeInsideTheOp) {
  Report(
      {{10, 13, 12, 31, false, 3}, {10, 13, 12, 31, false, 2}, {10, 13, 12, 31, false, 3}, {10, 13, 12, 31, false, 3}});
  ASSERT_EQ(w_.State(id_), JOB_STATE_STOPPING);
  EXPECT_EQ(
      w_.Get(id_).failure().exit().message(),
      "rank 1 on a hung in step 11 at Release u12, inside the unit (it has entered exchange 2; rank 0 has entered "
      "exchange 3 and waits for it): no progress for 31 s");
}

// Ranks that exchange inside their passes.
class HungInsidePasses : public Hangs {
 protected:
  HungInsidePasses(uint32_t tensor, uint32_t context) {
    w_.Do(CancelJob{id_});
    for (uint32_t rank = 0; rank < kRanks; ++rank) w_.ReportRank(id_, rank, RANK_STATE_EXITED, RankExit::STOPPED);
    JobSpec spec = Gang("t", kRanks);
    spec.mutable_train()->mutable_parallel()->set_tensor(tensor);
    spec.mutable_train()->mutable_parallel()->set_context(context);
    id_ = w_.Submit(spec);
    Run(id_);
  }
  std::string MessageOf(const std::vector<std::optional<uint64_t>>& exchanges) {
    std::vector<Page> pages;
    for (const auto& begun : exchanges) pages.push_back({10, 13, 12, 31, false, begun});
    Report(pages);
    EXPECT_EQ(w_.State(id_), JOB_STATE_STOPPING);
    return w_.Get(id_).failure().exit().message();
  }
};

// Two groups of tensor ranks: 0 and 1, 2 and 3. They exchange nothing with one another inside their passes.
class HungTensorRanks : public HungInsidePasses {
 protected:
  HungTensorRanks() : HungInsidePasses(2, 1) {}
};

TEST_F(HungTensorRanks, OnlyThoseOfOneGroupAreCompared) {
  EXPECT_EQ(MessageOf({1, 1, 3, 2}),
            "rank 3 (shard 1, tensor 1) on b hung in step 11 at Release u12, inside the unit (it has entered exchange "
            "2; rank 2 has entered exchange 3 and waits for it): no progress for 31 s");
}

TEST_F(HungTensorRanks, BeforeTheFirstExchange) {
  EXPECT_EQ(MessageOf({2, 2, 0, 1}),
            "rank 2 (shard 1, tensor 0) on b hung in step 11 at Release u12, inside the unit (it has entered no "
            "exchange; rank 3 has entered exchange 1 and waits for it): no progress for 31 s");
}

// The first of those that are alike, and what is known of it.
TEST_F(HungTensorRanks, AllInTheSameExchange) {
  EXPECT_EQ(MessageOf({2, 2, 1, 1}),
            "rank 0 (shard 0, tensor 0) on a hung in step 11 at Release u12, inside the unit (it has entered exchange "
            "2 and no later one): no progress for 31 s");
}

// An older worker counts none: that is not a count of 0.
TEST_F(HungTensorRanks, WithoutACountNoneIsBlamedForIt) {
  EXPECT_EQ(MessageOf({1, 1, 2, std::nullopt}),
            "rank 0 (shard 0, tensor 0) on a hung in step 11 at Release u12, inside the unit (it has entered exchange "
            "1 and no later one): no progress for 31 s");
}

// Two groups that share sequences, 0 and 1, 2 and 3; or one of two tensor ranks each, in which every rank waits for the
// others.
class HungContextRanks : public HungInsidePasses {
 protected:
  HungContextRanks() : HungInsidePasses(1, 2) {}
};
class HungContextTensorRanks : public HungInsidePasses {
 protected:
  HungContextTensorRanks() : HungInsidePasses(2, 2) {}
};

TEST_F(HungContextRanks, OnlyThoseOfOneGroupAreCompared) {
  EXPECT_EQ(MessageOf({1, 1, 2, 3}),
            "rank 2 (shard 2, context 0) on b hung in step 11 at Release u12, inside the unit (it has entered exchange "
            "2; rank 3 has entered exchange 3 and waits for it): no progress for 31 s");
}

// Rank 3 misses the first exchange, that of keys and values; rank 1 waits for it in there, and rank 0 for rank 1 in the
// next one, with its tensor rank.
TEST_F(HungContextTensorRanks, AreComparedInOneOrderOfAllTheirExchanges) {
  EXPECT_EQ(MessageOf({2, 1, 2, 0}),
            "rank 3 (shard 1, context 1, tensor 1) on b hung in step 11 at Release u12, inside the unit (it has "
            "entered no exchange; rank 0 has entered exchange 2 and waits for it): no progress for 31 s");
}

TEST_F(Hangs, LaterExitsAreCollateral) {
  Report({{10, 20, 19, 31}, {10, 20, 19, 31}, {10, 13, 12, 31}, {10, 20, 19, 31}});
  w_.events.clear();
  w_.ReportRank(id_, 3, RANK_STATE_EXITED, RankExit::FAILED);
  NodeObserved killed{NodeId("b"), Incarnation("i1"), {}};
  ObservedRank& culprit = *killed.observed.add_ranks();
  culprit.mutable_key()->set_job(id_.value());
  culprit.mutable_key()->set_generation(1);
  culprit.mutable_key()->set_rank(2);
  culprit.set_state(RANK_STATE_EXITED);
  culprit.mutable_exit()->set_cause(RankExit::STOPPED);
  culprit.mutable_exit()->set_signal(9);
  culprit.mutable_exit()->set_of_other_rank(true);  // it ran again at the end, and rank 3 was gone
  culprit.mutable_exit()->add_last_lines("step 10 done");
  w_.Do(killed);
  w_.ReportRank(id_, 0, RANK_STATE_EXITED, RankExit::STOPPED);
  w_.ReportRank(id_, 1, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w_.State(id_), JOB_STATE_QUEUED);
  const Generation generation = w_.Newest(id_);
  EXPECT_EQ(generation.reason(), END_REASON_FAILED);
  EXPECT_EQ(generation.ranks(2).exit().cause(), RankExit::HUNG);
  const Failure failure = w_.Get(id_).failure();
  EXPECT_EQ(failure.exit().last_lines(0), "step 10 done");
  EXPECT_EQ(failure.exit().signal(), 9);
  EXPECT_FALSE(failure.exit().of_other_rank()) << "the ranks that end later are no culprits";
  EXPECT_TRUE(absl::StrContains(failure.exit().message(), "hung in step 11")) << failure.exit().message();
  EXPECT_EQ(std::vector<uint32_t>(failure.collateral().begin(), failure.collateral().end()),
            (std::vector<uint32_t>{3, 0, 1}));
  EXPECT_EQ(std::count(w_.events.begin(), w_.events.end(), "rank.exited"), 0) << "only the first fault is reported";
  EXPECT_EQ(w_.Get(id_).restarts(), 1u);
}

TEST_F(Hangs, NoHangIsReportedWhileTheSlowestRankMakesProgress) {
  // Rank 1 is slow: it is in a long op, and completed others before.
  Report({{10, 20, 19, 40}, {10, 5, 4, 12}, {10, 20, 19, 40}, {10, 20, 19, 40}});
  EXPECT_EQ(w_.State(id_), JOB_STATE_RUNNING);
  Report({{10, 20, 19, 29}, {10, 20, 19, 29}, {10, 20, 19, 29}, {10, 20, 19, 29}});
  EXPECT_EQ(w_.State(id_), JOB_STATE_RUNNING) << "the next report comes within 30 s";
}

TEST_F(Hangs, StallTimeRestartsWhenAFrozenRankResumes) {
  Report({{10, 20, 19, 25}, {10, 20, 19, 25, true}, {10, 5, 4, 25}, {10, 20, 19, 25}});
  Report({{10, 20, 19, 40}, {10, 20, 19, 1}, {10, 5, 4, 40}, {10, 20, 19, 40}});
  EXPECT_EQ(w_.State(id_), JOB_STATE_RUNNING);
  Seconds(29);
  Report({{10, 20, 19, 69}, {10, 20, 19, 30}, {10, 5, 4, 69}, {10, 20, 19, 69}});
  EXPECT_EQ(w_.State(id_), JOB_STATE_RUNNING);
  Seconds(1);
  Report({{10, 20, 19, 70}, {10, 20, 19, 31}, {10, 5, 4, 70}, {10, 20, 19, 70}});
  EXPECT_EQ(w_.State(id_), JOB_STATE_STOPPING) << "it had enough time since it resumed";
  EXPECT_EQ(w_.Get(id_).failure().rank(), 2u);
}

// It waits for a checkpoint, which is not an op.
TEST_F(Hangs, ARankThatRunsMayWaitForTheOneThatHangs) {
  Report({{10, 0, 0, 0}, {10, 0, 0, 31, true}, {10, 0, 0, 0}, {10, 0, 0, 0}});
  EXPECT_EQ(w_.State(id_), JOB_STATE_STOPPING);
  EXPECT_EQ(w_.Get(id_).failure().rank(), 1u);
}

TEST_F(Hangs, SlowStepsMayTakeLonger) {
  for (uint64_t step = 11; step < 20; ++step) {
    Seconds(20);
    for (uint32_t rank = 0; rank < kRanks; ++rank) w_.RankProgress(id_, rank, step, 0, 0, 0);
  }
  Report(std::vector<Page>(kRanks, {19, 9, 8, 199}));
  EXPECT_EQ(w_.State(id_), JOB_STATE_RUNNING);
  Report(std::vector<Page>(kRanks, {19, 9, 8, 201}));
  EXPECT_EQ(w_.State(id_), JOB_STATE_STOPPING);
}

TEST_F(Hangs, TheFirstStepAndTheLastCheckpointTakeAsLongAsAStart) {
  JobSpec spec = Gang("h", 1);
  w_.Do(CancelJob{id_});
  for (uint32_t rank = 0; rank < kRanks; ++rank) w_.ReportRank(id_, rank, RANK_STATE_EXITED, RankExit::STOPPED);
  for (const uint64_t step : {0u, 100u}) {
    const JobId id = w_.Submit(spec);
    Run(id);
    w_.RankProgress(id, 0, step, 1, 0, 290);
    EXPECT_EQ(w_.State(id), JOB_STATE_RUNNING) << step;
    w_.RankProgress(id, 0, step, 1, 0, 301);
    EXPECT_EQ(w_.State(id), JOB_STATE_STOPPING) << step;
    w_.ReportRank(id, 0, RANK_STATE_EXITED, RankExit::STOPPED);
    w_.Do(CancelJob{id});
  }
}

// The first step is the first that the ranks know: it may follow another job's checkpoint, or an older one of this job.
TEST_F(Hangs, TheFirstStepIsTheOneAfterTheResumedStep) {
  w_.Do(CancelJob{id_});
  for (uint32_t rank = 0; rank < kRanks; ++rank) w_.ReportRank(id_, rank, RANK_STATE_EXITED, RankExit::STOPPED);
  const JobId id = w_.Submit(Gang("h", 1));
  EXPECT_TRUE(w_.Begin(id, 40).status.ok());
  EXPECT_EQ(w_.Newest(id).resumed_step(), 40u);
  EXPECT_FALSE(w_.Newest(id).has_resume_from());
  Run(id);
  w_.RankProgress(id, 0, 40, 1, 0, 290);
  EXPECT_EQ(w_.State(id), JOB_STATE_RUNNING);
  w_.RankProgress(id, 0, 41, 1, 0, 290);
  EXPECT_EQ(w_.State(id), JOB_STATE_STOPPING);
  EXPECT_EQ(w_.Get(id).failure().step(), 42u);
}

TEST_F(Hangs, AJobMayExtendTheLimit) {
  w_.Do(CancelJob{id_});
  for (uint32_t rank = 0; rank < kRanks; ++rank) w_.ReportRank(id_, rank, RANK_STATE_EXITED, RankExit::STOPPED);
  JobSpec spec = Gang("h", kRanks);
  spec.set_detection_seconds(60);
  id_ = w_.Submit(spec);
  Run(id_);
  const Assignment assignment = w_.core->DesiredFor(NodeId("a")).ranks(0).run();
  EXPECT_EQ(assignment.collective_deadline().seconds(), 720);
  Report(std::vector<Page>(kRanks, {10, 9, 8, 179}));
  EXPECT_EQ(w_.State(id_), JOB_STATE_RUNNING);
  Report(std::vector<Page>(kRanks, {10, 9, 8, 181}));
  EXPECT_EQ(w_.State(id_), JOB_STATE_STOPPING);
}

// Ranks along another axis still wait as long as before.
TEST_F(Hangs, AnAxisThatWaitsLessIsStillTooLongForAHang) {
  w_.Do(CancelJob{id_});
  for (uint32_t rank = 0; rank < kRanks; ++rank) w_.ReportRank(id_, rank, RANK_STATE_EXITED, RankExit::STOPPED);
  JobSpec spec = Gang("h", kRanks);
  spec.mutable_train()->mutable_communication()->mutable_timeout_seconds()->set_tensor(50);
  id_ = w_.Submit(spec);
  Run(id_);
  EXPECT_EQ(w_.core->DesiredFor(NodeId("a")).ranks(0).run().collective_deadline().seconds(), 600);
  const Timeouts timeouts = TimeoutsOf(Derive(absl::Seconds(10)), spec);
  EXPECT_EQ(HangLimit(timeouts, absl::Seconds(30)), absl::Seconds(45)) << "steps of 30 s alone would allow 5 minutes";
}

// The silent node's own time-out comes first.
TEST_F(Hangs, NoHangIsReportedWhileANodeIsSilent) {
  w_.Do(NodeDisconnected{NodeId("b"), Incarnation("i1")});
  w_.RankProgress(id_, 0, 10, 9, 8, 60);
  EXPECT_EQ(w_.State(id_), JOB_STATE_RUNNING);
  w_.Do(NodeConnected{Hello("b", 2)});
  w_.RankProgress(id_, 0, 10, 9, 8, 61);
  EXPECT_EQ(w_.State(id_), JOB_STATE_RUNNING) << "it has not reported yet";
}

TEST_F(Hangs, ARestartedCoordinatorWaitsForAllReports) {
  w_.Restart();
  for (const char* node : {"a", "b"}) {
    w_.Do(NodeConnected{Hello(node, 2)});
    const uint32_t first = node[0] == 'a' ? 0 : 2;
    NodeObserved event{NodeId(node), Incarnation("i1"), {}};
    event.observed.set_full(true);
    for (uint32_t rank = first; rank < first + 2; ++rank) {
      ObservedRank& seen = *event.observed.add_ranks();
      seen.mutable_key()->set_job(id_.value());
      seen.mutable_key()->set_generation(1);
      seen.mutable_key()->set_rank(rank);
      seen.set_state(RANK_STATE_RUNNING);
      seen.set_step(10);
      seen.set_op_issued(rank == 3 ? 2 : 9);
      seen.set_stalled_seconds(45);
    }
    w_.Do(event);
    if (node[0] == 'a') {
      EXPECT_EQ(w_.State(id_), JOB_STATE_RUNNING);
    }
  }
  w_.RankProgress(id_, 0, 10, 9, 8, 46);
  EXPECT_EQ(w_.State(id_), JOB_STATE_RUNNING) << "a rank may have been frozen until just now";
  Seconds(30);
  w_.RankProgress(id_, 0, 10, 9, 8, 76);
  EXPECT_EQ(w_.State(id_), JOB_STATE_STOPPING);
  EXPECT_EQ(w_.Get(id_).failure().rank(), 3u);
}

// What the page of a job shows: the op of each rank by its name, without a stall, too.
TEST_F(Hangs, WhereEachRankIsCanBeListedWhileItRuns) {
  w_.RankProgress(id_, 0, 10, 0, 0, 0, false, /*op=*/13);
  w_.RankProgress(id_, 1, 11, 0, 0, 0);
  w_.RankProgress(id_, 2, 10, 20, 19, 7.5, true, 20);
  std::vector<RankProgress> seen = w_.core->ListProgress(id_);
  ASSERT_EQ(seen.size(), kRanks);
  for (uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(seen[rank].rank(), rank);
  EXPECT_EQ(seen[0].step(), 10u);
  EXPECT_EQ(seen[0].op(), "Release u12");
  EXPECT_EQ(seen[0].stalled_seconds(), 0);
  EXPECT_EQ(seen[1].step(), 11u);
  EXPECT_EQ(seen[1].op(), "") << "between two steps";
  EXPECT_EQ(seen[2].op(), "Release u19");
  EXPECT_EQ(seen[2].stalled_seconds(), 7.5);
  EXPECT_TRUE(seen[2].frozen());
  EXPECT_EQ(w_.State(id_), JOB_STATE_RUNNING);
  w_.RankProgress(id_, 3, 10, 0, 0, 0, false, /*op=*/21, /*op_step=*/14);
  EXPECT_EQ(w_.core->ListProgress(id_)[3].op(), "") << "the schedule has 20 ops";
  EXPECT_EQ(w_.core->ListProgress(id_)[3].step(), 14u) << "its own report is of an earlier step";
  w_.Do(CancelJob{id_});
  for (uint32_t rank = 0; rank < kRanks; ++rank) w_.ReportRank(id_, rank, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_TRUE(w_.core->ListProgress(id_).empty());
  EXPECT_TRUE(w_.core->ListProgress(JobId("none")).empty());
  EXPECT_EQ(w_.core->ListGenerations(id_, 0).size(), 0u);
  EXPECT_EQ(w_.core->ListGenerations(id_, 5).size(), 1u);
}

}  // namespace
}  // namespace muster::core
