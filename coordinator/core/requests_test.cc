// Requests to the ranks of a running job.
#include <gmock/gmock.h>

#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

using ::testing::HasSubstr;

uint64_t RequestOf(World& w, const std::string& node, int rank = 0) {
  return w.core->DesiredFor(NodeId(node)).ranks(rank).run().checkpoint_request();
}

TEST(Requests, ACheckpointRequestIsForTheNewestGenerationOnly) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 1)});
  const JobId id = w.Submit(Spec("x"));
  EXPECT_EQ(RequestOf(w, "a"), 0u);
  w.Report(id, RANK_STATE_RUNNING);
  const Outcome asked = w.Do(CheckpointJob{id, 77});
  ASSERT_TRUE(asked.status.ok()) << asked.status;
  ASSERT_EQ(asked.actions.size(), 1u);
  EXPECT_EQ(std::get<SendDesired>(asked.actions[0]).node.value(), "a");
  EXPECT_TRUE(asked.rows.empty() && asked.events.empty()) << "a restart ends the caller's wait, so it is not stored";
  EXPECT_EQ(RequestOf(w, "a"), 77u);
  w.Do(CheckpointJob{id, 78});
  EXPECT_EQ(RequestOf(w, "a"), 78u);
  // Its next generation starts without it.
  w.Report(id, RANK_STATE_EXITED, RankExit::FAILED);
  w.PassBackoff();
  ASSERT_EQ(w.Newest(id).number(), 2u);
  EXPECT_EQ(RequestOf(w, "a"), 0u);
}

TEST(Requests, AJobThatDoesNotRunOrHasNoFolderRefuses) {
  World w(AnyWorld());
  const auto refused = [&](const JobId& id, const std::string& says) {
    const Outcome out = w.Do(CheckpointJob{id, 1});
    EXPECT_EQ(out.status.code(), absl::StatusCode::kFailedPrecondition) << out.status;
    EXPECT_THAT(std::string(out.status.message()), HasSubstr(says));
  };
  const JobId waiting = w.Submit(Spec("x"));
  refused(waiting, "is queued, not running: it has nothing new to write");
  JobSpec spec = Spec("y");
  spec.mutable_train()->mutable_checkpoint()->clear_path();
  refused(w.Submit(spec), "writes no checkpoints: its spec has no checkpoint.path");
  w.Do(CancelJob{waiting});
  refused(waiting, "is cancelled, not running");
  EXPECT_EQ(w.Do(CheckpointJob{JobId("no-such-job"), 1}).status.code(), absl::StatusCode::kNotFound);
}

TEST(Requests, TheHighestStepIsOfTheNewestGeneration) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 1)});
  const JobId id = w.Submit(Spec("x"));
  w.Report(id, RANK_STATE_RUNNING);
  RankRecord record{{id, 1, 0}, {}};
  record.record.mutable_metrics()->set_step(17);
  w.Do(record);
  EXPECT_EQ(w.core->HighestStep(id), 17u);
  w.Report(id, RANK_STATE_EXITED, RankExit::FAILED);
  w.PassBackoff();
  EXPECT_EQ(w.core->HighestStep(id), 0u);
  EXPECT_EQ(w.core->HighestStep(JobId("no-such-job")), 0u);
}

}  // namespace
}  // namespace muster::core
