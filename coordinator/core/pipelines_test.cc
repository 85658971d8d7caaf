// Jobs whose ranks are stages of a pipeline: digests by stage, sizes, and which stage hangs.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "coordinator/core/exits.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

JobSpec Staged(const std::string& name, uint32_t ranks, uint32_t stages, uint32_t least = 0) {
  JobSpec spec = Gang(name, ranks);
  spec.mutable_train()->mutable_parallel()->set_pipeline(stages);
  if (least > 0) spec.mutable_resources()->set_min_ranks(least);
  return spec;
}

std::vector<std::string> DigestsOn(const World& w, const std::string& node) {
  std::vector<std::string> digests;
  const Desired desired = w.core->DesiredFor(NodeId(node));
  for (const DesiredRank& rank : desired.ranks()) digests.push_back(rank.run().schedule_digest());
  return digests;
}

TEST(Pipelines, EachRankGetsTheDigestOfItsStage) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 3)});
  w.Do(NodeConnected{Hello("b", 3)});
  const JobId id = w.Submit(Staged("p", 6, 3));
  ASSERT_EQ(w.State(id), JOB_STATE_STARTING);
  const std::vector<std::string> on_a = {"digest 0", "digest 0", "digest 1"},
                                 on_b = {"digest 1", "digest 2", "digest 2"};
  EXPECT_EQ(DigestsOn(w, "a"), on_a);
  EXPECT_EQ(DigestsOn(w, "b"), on_b);
  // A restarted coordinator that has not planned yet sends those that it has stored.
  w.held = true;
  w.Restart();
  w.Do(NodeConnected{Hello("a", 3)});
  w.Do(NodeConnected{Hello("b", 3)});
  w.ReportNothing("a"), w.ReportNothing("b");
  EXPECT_EQ(DigestsOn(w, "b"), on_b);
}

// By whole stages' worth of ranks: 5 slots are used by 4 ranks, and a seventh slot does not make a job of 6 ranks grow.
TEST(Pipelines, ResizeByWholeRanksOfEveryStage) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 5)});
  const JobId id = w.Submit(Staged("p", 8, 2, 4));
  w.TickAfter(absl::Seconds(5));
  ASSERT_EQ(w.State(id), JOB_STATE_STARTING);
  EXPECT_EQ(w.Newest(id).ranks_size(), 4);
  w.RunAll(id);
  w.Do(NodeConnected{Hello("b", 1)});
  for (int check = 0; check < 2; ++check) w.TickAfter(absl::Minutes(5));
  ASSERT_EQ(w.State(id), JOB_STATE_STOPPING);
  for (uint32_t rank = 0; rank < 4; ++rank) w.ReportRank(id, rank, RANK_STATE_EXITED, RankExit::STOPPED);
  ASSERT_EQ(w.Newest(id).ranks_size(), 6);
  w.RunAll(id);
  w.Do(NodeConnected{Hello("c", 1)});
  for (int check = 0; check < 3; ++check) w.TickAfter(absl::Minutes(5));
  EXPECT_EQ(w.State(id), JOB_STATE_RUNNING) << "a seventh rank alone is of no use";
}

// By two stages' worth of the two ranks that share sequences: with seven slots a job of 8 ranks runs on 4.
TEST(Pipelines, ResizeByAllThatShareSequencesOnEveryStage) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 7)});
  JobSpec spec = Staged("p", 8, 2, 4);
  spec.mutable_train()->mutable_parallel()->set_context(2);
  const JobId id = w.Submit(spec);
  w.TickAfter(absl::Seconds(5));
  ASSERT_EQ(w.State(id), JOB_STATE_STARTING);
  EXPECT_EQ(w.Newest(id).ranks_size(), 4);
  w.RunAll(id);
  for (int check = 0; check < 2; ++check) w.TickAfter(absl::Minutes(5));
  EXPECT_EQ(w.State(id), JOB_STATE_RUNNING) << "three more slots are of no use";
  w.Do(NodeConnected{Hello("b", 1)});
  for (int check = 0; check < 2; ++check) w.TickAfter(absl::Minutes(5));
  ASSERT_EQ(w.State(id), JOB_STATE_STOPPING);
  for (uint32_t rank = 0; rank < 4; ++rank) w.ReportRank(id, rank, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.Newest(id).ranks_size(), 8);
}

TEST(Pipelines, RanksAreNamedWithTheirPlace) {
  Generation generation;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    RankRole& role = *generation.add_ranks()->mutable_role();
    role.set_rank(rank), role.set_shard(rank), role.set_stage(rank / 2);
  }
  EXPECT_EQ(RankName(generation, 3), "rank 3 (stage 1, shard 1)");
  for (RankPlacement& rank : *generation.mutable_ranks()) rank.mutable_role()->set_stage(0);
  EXPECT_EQ(RankName(generation, 3), "rank 3") << "without a pipeline the number says it all";
  for (uint32_t rank = 0; rank < 4; ++rank) generation.mutable_ranks(rank)->mutable_role()->set_context(rank % 2);
  EXPECT_EQ(RankName(generation, 2), "rank 2 (shard 2, context 0)");
  EXPECT_EQ(RankName(generation, 3), "rank 3 (shard 3, context 1)");
}

TEST(Pipelines, AnExitNamesTheRanksPlace) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 4)});
  const JobId id = w.Submit(Staged("p", 4, 2));
  w.clock.Advance(absl::Seconds(5));
  w.Do(Tick{});
  for (uint32_t rank = 0; rank < 4; ++rank) w.ReportRank(id, rank, RANK_STATE_RUNNING);
  w.Fail(id, 1, ": the loss is nan");
  EXPECT_EQ(w.Get(id).failure().exit().message(), "rank 0 (stage 0, shard 0) exited with code 1: the loss is nan");
}

class HungStages : public testing::Test {
 protected:
  static constexpr uint32_t kStages = 3;
  HungStages() { w_.Do(NodeConnected{Hello("a", 6)}); }
  // The index of the op of that name in the stage's step.
  static uint64_t At(uint32_t stage, const std::string& op) {
    const OpNames names = AnyStage(stage, kStages);
    for (uint64_t i = 0; i < names.ops(); ++i) {
      if (names.NameOf(i) == op) return i;
    }
    ADD_FAILURE() << "stage " << stage << " has no " << op;
    return 0;
  }
  // The rank that is at fault when the ranks are in the way of these ops; "": between two steps. A rank runs an op of
  // its own, or has issued `ahead` more and waits for it.
  uint32_t CulpritOf(const std::vector<std::string>& ops, uint64_t ahead = 0) {
    const auto ranks = static_cast<uint32_t>(ops.size());
    const JobId id = w_.Submit(Staged("p", ranks, kStages));
    for (uint32_t rank = 0; rank < ranks; ++rank) w_.ReportRank(id, rank, RANK_STATE_RUNNING);
    w_.clock.Advance(absl::Seconds(1000));
    for (uint32_t rank = 0; rank < ranks; ++rank) w_.RankProgress(id, rank, 10, 0, 0, 0);
    for (uint32_t rank = 0; rank < ranks && w_.State(id) == JOB_STATE_RUNNING; ++rank) {
      const uint64_t op = ops[rank].empty() ? 0 : At(rank / (ranks / kStages), ops[rank]);
      w_.RankProgress(id, rank, 10, ops[rank].empty() ? 0 : op + 1 + ahead, op, 31);
    }
    EXPECT_EQ(w_.State(id), JOB_STATE_STOPPING);
    message_ = w_.Get(id).failure().exit().message();
    const uint32_t culprit = w_.Get(id).failure().rank();
    w_.Do(CancelJob{id});
    for (uint32_t rank = 0; rank < ranks; ++rank) w_.ReportRank(id, rank, RANK_STATE_EXITED, RankExit::STOPPED);
    return culprit;
  }

  World w_{AnyWorld()};
  std::string message_;
};

// Stage 1 hangs after stage 0 has issued more ops and stage 2 fewer than it.
TEST_F(HungStages, NeighborsThatWaitAreNotAtFault) {
  EXPECT_EQ(CulpritOf({"SendActivation u0 m3", "Forward u0 m2", "ReceiveActivation u0 m2"}), 1u);
  EXPECT_TRUE(absl::StartsWith(message_, "rank 1 (stage 1) on a hung in step 11 at Forward u0 m2")) << message_;
  EXPECT_EQ(CulpritOf({"Forward u0 m0", "ReceiveActivation u0 m0", "ReceiveActivation u0 m0"}), 0u);
  EXPECT_EQ(CulpritOf({"ReceiveGradient u0 m0", "ReceiveGradient u0 m0", "Backward u0 m0"}), 2u);
  EXPECT_EQ(CulpritOf({"GradientNorm", "Backward u0 m3", "GradientNorm"}), 1u);
}

TEST_F(HungStages, ARankThatHasNotBegunItsStepIsAtFault) {
  EXPECT_EQ(CulpritOf({"ReceiveGradient u0 m0", "ReceiveActivation u0 m0", ""}), 2u);
}

TEST_F(HungStages, WithinAStageTheSlowestRankIsAtFault) {
  EXPECT_EQ(CulpritOf({"SendActivation u0 m1", "SendActivation u0 m1", "Forward u0 m2", "Forward u0 m1",
                       "ReceiveActivation u0 m1", "ReceiveActivation u0 m1"}),
            3u);
  EXPECT_TRUE(absl::StartsWith(message_, "rank 3 (stage 1, shard 1) on a hung")) << message_;
}

// A GPU reports the earliest op that is not done, so that a receive posted ahead hides the one that hangs.
TEST_F(HungStages, WhereAllWaitTheStageThatOwesActivationsIsAtFault) {
  EXPECT_EQ(CulpritOf({"ReceiveGradient u0 m0", "ReceiveGradient u0 m0", "ReceiveActivation u0 m3"}, 20), 1u);
  EXPECT_EQ(CulpritOf({"ReceiveGradient u0 m1", "ReceiveGradient u0 m1", "GradientNorm"}, 20), 2u);
}

}  // namespace
}  // namespace muster::core
