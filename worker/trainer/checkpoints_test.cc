// When a trainer writes checkpoints, how long training waits, and what remains after a disk failure or a kill.
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/wait.h"
#include "worker/trainer/fake_trainer_server.h"

namespace muster::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Of a trainer that is started while it lives.
class Failpoints {
 public:
  explicit Failpoints(const std::string& text) { setenv("MUSTER_FAILPOINTS", text.c_str(), 1); }
  ~Failpoints() { unsetenv("MUSTER_FAILPOINTS"); }
};

JobSpec Job(const Bench& bench, uint64_t steps, uint64_t every) {
  JobSpec spec = bench.MakeJob();
  spec.mutable_train()->set_steps(steps);
  spec.mutable_train()->mutable_checkpoint()->set_every_steps(every);
  return spec;
}

std::vector<CheckpointWritten> Written(const std::vector<Record>& records) {
  std::vector<CheckpointWritten> written;
  for (const Record& record : records) {
    if (record.has_checkpoint()) written.push_back(record.checkpoint());
  }
  return written;
}

std::vector<uint64_t> Steps(const std::vector<Record>& records) {
  std::vector<uint64_t> steps;
  for (const CheckpointWritten& written : Written(records)) steps.push_back(written.step());
  return steps;
}

// Steps that were reported before the first checkpoint.
uint64_t StepsBeforeTheFirst(const std::vector<Record>& records) {
  uint64_t step = 0;
  for (const Record& record : records) {
    if (record.has_checkpoint()) return step;
    if (record.has_metrics()) step = record.metrics().step();
  }
  return step;
}

// A disk that takes so long for each file.
constexpr char kSlowDisk[] = "checkpoint.shard.sync=sleep:700@1";

TEST(Checkpoints, TrainingGoesOnWhileOneIsWritten) {
  Bench bench;
  const Assignment assignment = bench.Assign(Job(bench, 2000, 10), 1);
  const Failpoints slow(kSlowDisk);
  Process trainer = bench.Start(assignment);
  ASSERT_TRUE(Eventually([&] { return bench.StepOf(assignment) >= 20; })) << trainer.Log();
  trainer.Signal(SIGTERM);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  const std::vector<Record> records = bench.Records(assignment);
  const std::vector<CheckpointWritten> written = Written(records);
  ASSERT_GE(written.size(), 2u);
  EXPECT_EQ(written[0].step(), 10u);
  EXPECT_GT(StepsBeforeTheFirst(records), 10u);
  EXPECT_GE(written[0].write_seconds(), 0.7);
  EXPECT_LT(written[0].stall_seconds(), written[0].write_seconds() - 0.65);
  // There is never more than one: that of step 20 waits for it, and is not left out.
  EXPECT_EQ(written[1].step(), 20u);
  // What is written is the state after its step, not what training made of it meanwhile.
  EXPECT_EQ(checkpoint::Checkpoint::Open(bench.Path("checkpoints/step-0000000020-g1")).value().manifest().step(), 20u);
}

TEST(Checkpoints, SynchronousOnesAreWaitedFor) {
  Bench bench;
  JobSpec spec = Job(bench, 20, 10);
  spec.mutable_train()->mutable_checkpoint()->set_async(false);
  const Assignment assignment = bench.Assign(spec, 1);
  const Failpoints slow(kSlowDisk);
  Process trainer = bench.Start(assignment);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  const std::vector<Record> records = bench.Records(assignment);
  EXPECT_EQ(StepsBeforeTheFirst(records), 10u);
  EXPECT_GE(Written(records)[0].stall_seconds(), 0.7);
}

// Both ways of writing give the same bytes at every step.
TEST(Checkpoints, TheCopyIsTheState) {
  std::vector<std::string> sums;
  for (const bool async : {true, false}) {
    Bench bench;
    JobSpec spec = Job(bench, 40, 10);
    spec.mutable_train()->mutable_checkpoint()->set_async(async);
    Assignment assignment = bench.Assign(spec, 1);
    for (const uint64_t step : {10, 20, 30, 40}) {
      PublishedCheckpoint& kept = *assignment.add_published();
      kept.set_step(step);
      kept.set_directory(checkpoint::StepName{step, 1}.Directory());
    }
    Process trainer = bench.Start(assignment);
    ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
    std::string all;
    for (const checkpoint::StepName& step : checkpoint::List(bench.Path("checkpoints"))) {
      const auto opened = checkpoint::Checkpoint::Open(bench.Path("checkpoints/" + step.Directory()));
      absl::StrAppend(&all, step.step, " ", opened.value().manifest().shards(0).sha256(), "\n");
    }
    EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 4);
    sums.push_back(all);
  }
  EXPECT_EQ(sums[0], sums[1]);
}

TEST(Checkpoints, AreWrittenAfterSoManySeconds) {
  Bench bench;
  JobSpec spec = Job(bench, 1'000'000, 0);
  spec.mutable_train()->mutable_checkpoint()->set_every_seconds(0.2);
  const Assignment assignment = bench.Assign(spec, 1);
  Process trainer = bench.Start(assignment);
  ASSERT_TRUE(Eventually([&] { return Written(bench.Records(assignment)).size() >= 3; })) << trainer.Log();
  trainer.Signal(SIGTERM);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  const std::vector<CheckpointWritten> written = Written(bench.Records(assignment));
  for (size_t i = 1; i + 1 < written.size(); ++i) {
    const double apart = static_cast<double>(written[i].time().seconds() - written[i - 1].time().seconds()) +
                         1e-9 * (written[i].time().nanos() - written[i - 1].time().nanos());
    // Checkpoints begin 0.2 s apart; the timestamps are those of their reports.
    EXPECT_GT(apart + written[i - 1].write_seconds(), 0.19) << i;
  }
}

TEST(Checkpoints, AreWrittenWhenAskedForOnceEach) {
  Bench bench;
  Assignment assignment = bench.Assign(Job(bench, 1'000'000, 0), 1);
  Process trainer = bench.Start(assignment);
  ASSERT_TRUE(Eventually([&] { return bench.StepOf(assignment) >= 5; })) << trainer.Log();
  const auto asked = [&](uint64_t request_number, size_t written) {
    const uint64_t before = bench.StepOf(assignment);
    assignment.set_checkpoint_request(request_number);
    bench.worker().Assign(assignment);
    EXPECT_TRUE(Eventually([&] { return Written(bench.Records(assignment)).size() == written; })) << trainer.Log();
    EXPECT_GT(Steps(bench.Records(assignment)).back(), before);
  };
  asked(11, 1);
  asked(12, 2);
  // The same again is no new request, and the coordinator forgets requests when it starts anew.
  for (const uint64_t request_number : {12, 0, 12}) {
    assignment.set_checkpoint_request(request_number);
    bench.worker().Assign(assignment);
    const uint64_t before = bench.StepOf(assignment);
    ASSERT_TRUE(Eventually([&] { return bench.StepOf(assignment) >= before + 50; }));
  }
  asked(9, 3);
}

TEST(Checkpoints, WhatIsBeingWrittenIsWaitedForAtTheEnd) {
  Bench bench;
  const Assignment assignment = bench.Assign(Job(bench, 20, 20), 1);
  const Failpoints slow(kSlowDisk);
  Process trainer = bench.Start(assignment);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  const std::vector<Record> records = bench.Records(assignment);
  EXPECT_THAT(Steps(records), ElementsAre(20u)) << "once";
  EXPECT_TRUE(records.back().has_finished()) << "after the checkpoint";
}

TEST(Checkpoints, AFailingDiskEndsTheRankWithItsName) {
  for (const char* point : {"checkpoint.staging.create", "checkpoint.shard.write", "checkpoint.shard.sync",
                            "checkpoint.sum.rename", "checkpoint.manifest.sync", "checkpoint.rename"}) {
    SCOPED_TRACE(point);
    Bench bench;
    const Assignment assignment = bench.Assign(Job(bench, 1'000'000, 10), 1);
    // In the second checkpoint: a shard of this model is written in 85 pieces.
    const Failpoints failing(absl::StrCat(point, "=ENOSPC@", point == std::string("checkpoint.shard.write") ? 100 : 2));
    Process trainer = bench.Start(assignment);
    EXPECT_EQ(trainer.Wait(), 1);
    EXPECT_THAT(trainer.LastLine(), AllOf(HasSubstr("the checkpoint of step "), HasSubstr("no space left")));
    const std::vector<Record> records = bench.Records(assignment);
    ASSERT_TRUE(records.back().has_failed());
    EXPECT_FALSE(records.back().failed().refused()) << "another attempt may find room";
    const auto steps = checkpoint::List(bench.Path("checkpoints"));
    ASSERT_FALSE(steps.empty());
    for (const checkpoint::StepName& step : steps) {
      EXPECT_TRUE(checkpoint::Checkpoint::Open(bench.Path("checkpoints/" + step.Directory())).ok());
    }
  }
}

TEST(Checkpoints, AFolderThatVanishesEndsTheRankWhichAwaitsItsShards) {
  Bench bench;
  const Assignment assignment = bench.Assign(Job(bench, 1'000'000, 10), 1);
  // The checksum file of the second checkpoint is there, and the call that wrote it has not returned yet.
  const Failpoints slow("checkpoint.sum.folder=sleep:2000@2");
  Process trainer = bench.Start(assignment);
  const std::string folder = bench.Path("checkpoints");
  const std::string sum = absl::StrCat(folder, "/", checkpoint::StepName{20, 1}.Staging(), "/shard-00000.sha256");
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(sum); }));
  std::filesystem::rename(folder, bench.Path("elsewhere"));
  EXPECT_EQ(trainer.Wait(), 1);
  EXPECT_THAT(trainer.LastLine(), AllOf(HasSubstr("the checkpoint of step 20 failed"), HasSubstr("was removed")));
}

// The failure that lost users' work. The coordinator refuses the second job at submit; this is what holds where it
// cannot know: another name of the folder, or another coordinator.
TEST(Checkpoints, ASecondJobInTheFolderIsRefusedAndTouchesNothing) {
  Bench bench;
  const Assignment first = bench.Assign(Job(bench, 20, 10), 1);
  Process trainer = bench.Start(first);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  const auto before = checkpoint::List(bench.Path("checkpoints"));
  ASSERT_EQ(before.size(), 2u);
  std::filesystem::create_directory_symlink(bench.Path("checkpoints"), bench.Path("alias"));
  for (const char* path : {"checkpoints", "alias", "checkpoints/../alias/."}) {
    static uint64_t generation = 1;
    JobSpec spec = Job(bench, 40, 5);
    spec.mutable_train()->mutable_checkpoint()->set_path(bench.Path(path));
    Assignment second = bench.Assign(spec, ++generation);
    second.mutable_key()->set_job("second-a2b3");
    Process refused = bench.Start(second);
    EXPECT_EQ(refused.Wait(), 1) << path;
    EXPECT_THAT(refused.LastLine(),
                AllOf(HasSubstr("belongs to job small-x7f2"), HasSubstr("not to second-a2b3"), HasSubstr("{job}")));
    ASSERT_TRUE(bench.Records(second).back().has_failed());
    EXPECT_TRUE(bench.Records(second).back().failed().refused()) << "no restart can help";
    EXPECT_EQ(checkpoint::List(bench.Path("checkpoints")), before);
  }
  for (const checkpoint::StepName& step : before) {
    const auto opened = checkpoint::Checkpoint::Open(bench.Path("checkpoints/" + step.Directory()));
    EXPECT_EQ(opened.value().manifest().job(), "small-x7f2");
  }
  // Read only, as another job's, it still serves.
  JobSpec goes_on = Job(bench, 30, 5);
  goes_on.mutable_train()->mutable_checkpoint()->set_resume_from(bench.Path("alias"));
  goes_on.mutable_train()->mutable_checkpoint()->set_path(bench.Path("own"));
  Assignment third = bench.Assign(goes_on, 9);
  third.mutable_key()->set_job("third-c4d5");
  Process trained = bench.Start(third);
  EXPECT_EQ(trained.Wait(), 0) << trained.Log();
  EXPECT_EQ(bench.Records(third).front().running().resumed_step(), 20u);
  EXPECT_EQ(checkpoint::List(bench.Path("checkpoints")), before);
}

// Whatever was killed in front of, the next generation resumes and ends with the weights of one that nothing happened
// to.
TEST(Checkpoints, KilledAnywhereInTheWriterItResumes) {
  constexpr uint64_t kSteps = 60, kEvery = 15;
  std::string undisturbed;
  for (const char* point :
       {"", "checkpoint.staging.create", "checkpoint.shard.create", "checkpoint.shard.sync", "checkpoint.sum.rename",
        "checkpoint.manifest.write", "checkpoint.staging.sync", "checkpoint.rename", "checkpoint.path.sync"}) {
    SCOPED_TRACE(point);
    Bench bench;
    const JobSpec spec = Job(bench, kSteps, kEvery);
    Assignment assignment = bench.Assign(spec, 1);
    if (*point != '\0') {
      const Failpoints killing(absl::StrCat(point, "=kill@2"));
      Process killed = bench.Start(assignment);
      ASSERT_EQ(killed.Wait(), 128 + SIGKILL) << killed.Log();
      assignment = bench.Assign(spec, 2);
      bench.Publish(assignment);
      ASSERT_TRUE(assignment.has_resume_from());
    }
    Process trainer = bench.Start(assignment);
    ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
    EXPECT_EQ(bench.Records(assignment).front().running().resumed_step(), assignment.resume_from().step());
    const auto [step, sum] = bench.NewestWeights(spec);
    EXPECT_EQ(step, kSteps);
    if (undisturbed.empty()) undisturbed = sum;
    EXPECT_EQ(sum, undisturbed);
    for (const auto& entry : std::filesystem::directory_iterator(bench.Path("checkpoints"))) {
      EXPECT_NE(entry.path().filename().string()[0], '.') << "nothing of the killed one is left";
    }
  }
}

}  // namespace
}  // namespace muster::trainer
