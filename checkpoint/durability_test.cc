// Checkpoints survive a full disk, a failing disk, a kill at any point and a power loss.
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_fixture_test.h"
#include "common/failpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/sync_watch.h"
#include "testing/temporary_folder.h"
#include "testing/wait.h"

namespace muster::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using DurabilityTest = CheckpointTest;

TEST_F(DurabilityTest, AFullDiskLeavesThePreviousOne) {
  ASSERT_TRUE(WriteStep(1).ok());
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const uint64_t manifest_bytes = fs::file_size(absl::StrCat(Directory(1), "/", kManifestFile));
  const uint64_t shard_bytes = fs::file_size(Directory(1) + "/shard-00000.safetensors");
  ASSERT_GT(manifest_bytes, shard_bytes) << "the limits below then also fall into the manifest";
  for (uint64_t limit = 0; limit < manifest_bytes; limit += 97) {
    const rlimit small = {limit, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const absl::Status status = WriteStep(2).status();
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    ASSERT_THAT(Names(), ElementsAre("step-0000000001-g1"));
  }
  ExpectWhole(1);
  ASSERT_TRUE(WriteStep(2).ok());
}

TEST_F(DurabilityTest, InterruptedAtEachStageThePreviousOneIsValid) {
  ASSERT_TRUE(WriteStep(1).ok());
  const StepName name{2, 1};
  const std::string staging = absl::StrCat(path_, "/", name.Staging());
  // Each stage is a process that stopped there; the next attempt replaces its files.
  ASSERT_TRUE(Begin(path_, {"job-1"}, name).ok());
  EXPECT_THAT(List(path_), ElementsAre(StepName{1, 1}));
  ASSERT_TRUE(Begin(path_, {"job-1"}, name).ok());
  ASSERT_TRUE(WriteShard(path_, name, 0, Parts()).ok());
  EXPECT_THAT(List(path_), ElementsAre(StepName{1, 1}));
  Dump(absl::StrCat(staging, "/", kManifestSumFile), "half");
  EXPECT_THAT(List(path_), ElementsAre(StepName{1, 1}));
  ExpectWhole(1);
  ASSERT_TRUE(WriteStep(2).ok());
  EXPECT_THAT(Names(), ElementsAre("step-0000000001-g1", "step-0000000002-g1"));
  EXPECT_EQ(WriteStep(2).status().code(), absl::StatusCode::kAlreadyExists);
  ExpectWhole(2);
}

// Rank 0 publishes as soon as it sees the last shard, however slow the disk of that shard's rank is.
TEST_F(DurabilityTest, RankZeroMayPublishWhileTheLastRankSyncsTheFolder) {
  const StepName name{1, 1};
  ASSERT_TRUE(Begin(path_, {"job-1"}, name).ok());
  Fill(1);
  ASSERT_TRUE(failpoint::Arm("checkpoint.sum.folder=sleep:300").ok());
  absl::Status of_shard;
  std::thread rank([&] { of_shard = WriteShard(path_, name, 0, Parts()).status(); });
  ASSERT_TRUE(Eventually([&] { return ShardIsWritten(path_, name, 0).value(); }));
  const absl::Status published = Finish(path_, MakeManifest(1)).status();
  rank.join();
  ASSERT_TRUE(failpoint::Arm("").ok());
  EXPECT_TRUE(published.ok()) << published;
  EXPECT_TRUE(of_shard.ok()) << of_shard;
  ExpectWhole(1);
}

// Power may fail at any moment: a named folder is on disk in full, and its name is synced before it is reported.
TEST_F(DurabilityTest, NothingIsNamedOrReportedBeforeItIsSynced) {
  const SyncWatch watch(path_);
  for (const uint64_t step : {1, 2}) {
    ASSERT_TRUE(WriteStep(step).ok());
    EXPECT_THAT(watch.Unsynced(), IsEmpty());
  }
  EXPECT_THAT(watch.RenamedUnsynced(), IsEmpty());
}

// Every place that stands before a write, a fsync, a rename or a removal, and how often writing a step passes it.
class EveryFailpointTest : public CheckpointTest {
 protected:
  // As rank 0 of a generation does it: the oldest of three steps goes.
  absl::Status WriteAndRetain(uint64_t step, uint64_t generation) {
    if (absl::Status status = WriteStep(step, generation).status(); !status.ok()) return status;
    return Retain(path_, {"job-1"}, generation, {StepName{step, generation}.Directory(), StepName{1, 1}.Directory()})
        .status();
  }
  void SetUp() override {
    ASSERT_TRUE(failpoint::Arm("none=kill").ok());
    ASSERT_TRUE(WriteStep(1).ok());
    ASSERT_TRUE(WriteStep(2).ok());
    fs::copy(path_, start_.path(), fs::copy_options::recursive);
    ASSERT_TRUE(failpoint::Arm("none=kill").ok());
    ASSERT_TRUE(WriteAndRetain(3, 1).ok());
    for (const auto& [name, count] : failpoint::Passed()) {
      for (uint64_t at = 1; at <= count; ++at) places_.push_back(absl::StrCat(name, "=%s@", at));
    }
    ASSERT_TRUE(failpoint::Arm("").ok());
    // Staging folder, shard, its sum, two of the manifest, the last rename, the folder above, and retention.
    ASSERT_GE(places_.size(), 20u);
  }
  void TearDown() override { ASSERT_TRUE(failpoint::Arm("").ok()); }
  // Steps 1 and 2, of generation 1.
  void StartOver() {
    fs::remove_all(path_);
    fs::copy(start_.path(), path_, fs::copy_options::recursive);
  }
  void ExpectAllWhole() {
    for (const StepName& step : List(path_)) ASSERT_NO_FATAL_FAILURE(ExpectWhole(step.step, step.generation));
    ASSERT_NO_FATAL_FAILURE(ExpectWhole(1));
  }

  const TemporaryFolder start_;
  std::vector<std::string> places_;
};

TEST_F(EveryFailpointTest, KilledThereAWholeCheckpointIsLeft) {
  for (const std::string& place : places_) {
    SCOPED_TRACE(place);
    ASSERT_NO_FATAL_FAILURE(StartOver());
    const pid_t child = fork();
    if (child == 0) {
      if (!failpoint::Arm(absl::StrReplaceAll(place, {{"%s", "kill"}})).ok()) _exit(1);
      _exit(WriteAndRetain(3, 1).ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    ASSERT_NO_FATAL_FAILURE(ExpectAllWhole());
    // The next generation continues and removes what the killed one left.
    ASSERT_TRUE(WriteAndRetain(3, 2).ok());
    ASSERT_NO_FATAL_FAILURE(ExpectWhole(3, 2));
    EXPECT_THAT(Names(), ElementsAre("step-0000000001-g1", "step-0000000003-g2"));
  }
}

TEST_F(EveryFailpointTest, WhereTheDiskFailsThePreviousOneIsLeftAndItIsSaid) {
  for (const std::string& place : places_) {
    for (const auto& [error, code] :
         {std::pair{"ENOSPC", absl::StatusCode::kResourceExhausted}, std::pair{"EIO", absl::StatusCode::kDataLoss}}) {
      SCOPED_TRACE(absl::StrCat(place, " ", error));
      ASSERT_NO_FATAL_FAILURE(StartOver());
      ASSERT_TRUE(failpoint::Arm(absl::StrReplaceAll(place, {{"%s", error}})).ok());
      const absl::Status status = WriteAndRetain(3, 1);
      ASSERT_TRUE(failpoint::Arm("").ok());
      EXPECT_EQ(status.code(), code) << status;
      ASSERT_NO_FATAL_FAILURE(ExpectAllWhole());
      for (const std::string& name : Names()) EXPECT_THAT(name, Not(testing::StartsWith(".staging")));
    }
  }
}

// A disk of 256 KiB, really full.
TEST_F(DurabilityTest, AFullFileSystemLeavesThePreviousOne) {
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() != 0 && unshare(CLONE_NEWUSER) != 0) _exit(2);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) _exit(2);
    if (mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=256k") != 0) _exit(3);
    values_.resize(20'000);
    const auto write = [&](uint64_t step) {
      Fill(step);
      const std::vector<TensorRun> runs = {{"w", {values_.size()}, 0, absl::MakeSpan(values_)}};
      return Write(path_, MakeManifest(step), runs).status();
    };
    if (!write(1).ok() || !write(2).ok()) _exit(4);
    if (!absl::IsResourceExhausted(write(3))) _exit(5);
    if (List(path_) != std::vector<StepName>{{2, 1}, {1, 1}} || Names().size() != 2) _exit(6);
    if (!Checkpoint::Open(Directory(2)).ok() || !Checkpoint::Open(Directory(1)).ok()) _exit(7);
    // With free space again, writing succeeds.
    fs::remove_all(Directory(1));
    _exit(write(3).ok() ? 0 : 8);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "2, 3: no right to mount a file system of its own";
}

// Rank 0 knows by this when to write the manifest: never before the shard is whole.
TEST_F(DurabilityTest, AShardIsWrittenWhenItsChecksumsAre) {
  const StepName name{2, 1};
  ASSERT_TRUE(Begin(path_, {"job-1"}, name).ok());
  EXPECT_EQ(ShardIsWritten(path_, name, 0).value(), false);
  for (const char* point : {"checkpoint.shard.sync", "checkpoint.sum.write", "checkpoint.sum.rename"}) {
    ASSERT_TRUE(failpoint::Arm(absl::StrCat(point, "=EIO")).ok());
    EXPECT_FALSE(WriteShard(path_, name, 0, Parts()).ok());
    ASSERT_TRUE(failpoint::Arm("").ok());
    EXPECT_EQ(ShardIsWritten(path_, name, 0).value(), false) << point;
    EXPECT_EQ(Finish(path_, MakeManifest(2)).status().code(), absl::StatusCode::kDataLoss) << point;
    ASSERT_TRUE(Begin(path_, {"job-1"}, name).ok());
  }
  ASSERT_TRUE(WriteShard(path_, name, 0, Parts()).ok());
  EXPECT_EQ(ShardIsWritten(path_, name, 0).value(), true);
  EXPECT_EQ(ShardIsWritten(path_, name, 1).value(), false);
}

// Rank 0 would wait for the other shards without end.
TEST_F(DurabilityTest, NoShardIsAwaitedInAFolderThatIsGone) {
  const StepName name{1, 1};
  ASSERT_TRUE(Begin(path_, {"job-1"}, name).ok());
  fs::rename(path_, path_ + "-elsewhere");
  const absl::Status gone = ShardIsWritten(path_, name, 0).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(gone.message(), HasSubstr(absl::StrCat(path_, "/", name.Staging(), " was removed")));
  fs::create_directory_symlink(fs::path(path_).filename(), path_);  // to itself
  EXPECT_FALSE(ShardIsWritten(path_, name, 0).ok());
}

// A writer killed at any instant: every folder with a step's name is complete.
TEST_F(DurabilityTest, KilledAtAnyInstant) {
  std::mt19937_64 random(3);
  uint64_t first = 1;
  for (int round = 0; round < 12; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (uint64_t step = first;; ++step) {
        if (!WriteStep(step).ok()) _exit(1);
        const std::vector<StepName> steps = List(path_);
        if (!Retain(path_, {"job-1"}, 1, {steps[0].Directory()}).ok()) _exit(1);
      }
    }
    // Every other one comes as far as a step, however slow the machine is.
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    const auto written = [&] { return !List(path_).empty() && List(path_)[0].step >= first; };
    while (round % 2 == 1 && !written() && absl::Now() < deadline) usleep(1000);
    usleep(random() % 30'000);
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed by itself";
    for (const StepName& step : List(path_)) {
      ASSERT_NO_FATAL_FAILURE(ExpectWhole(step.step, step.generation));
      first = std::max(first, step.step + 1);
    }
  }
  EXPECT_GT(first, 1u) << "no step was ever written";
}

}  // namespace
}  // namespace muster::checkpoint
