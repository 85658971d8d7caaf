#include "worker/rundir/rundir.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "common/file/durable_file.h"
#include "common/file/read_file.h"
#include "testing/temporary_folder.h"
#include "worker/rundir/process_table.h"
#include "worker/rundir/progress.h"
#include "worker/rundir/segments.h"

namespace muster::rundir {
namespace {

RankId Rank(const std::string& job, uint64_t generation, uint32_t rank) { return {JobId(job), generation, rank}; }

Start AStart() {
  return {
      {"/bin/echo", "a b", "\"c\"\n"}, {"PATH=/bin", "X=\xC3\xA9"}, "/", absl::Milliseconds(1500), absl::Seconds(3)};
}

TEST(RankDir, StartRoundTripsAndIsWrittenOnce) {
  TemporaryFolder run;
  const RankDir dir(run.path(), Rank("gpt2-x7f2", 3, 1));
  EXPECT_EQ(dir.path(), run.path() + "/gpt2-x7f2/3/1");
  ASSERT_TRUE(dir.Create(AStart()).ok());
  const Start read = dir.ReadStart().value();
  EXPECT_EQ(read.argv, AStart().argv);
  EXPECT_EQ(read.environment, AStart().environment);
  EXPECT_EQ(read.working_directory, "/");
  EXPECT_EQ(read.orphan_grace, absl::Milliseconds(1500));
  EXPECT_EQ(read.kill_grace, absl::Seconds(3));
  EXPECT_EQ(dir.Create(AStart()).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(std::filesystem::status(dir.path()).permissions(), std::filesystem::perms::owner_all);
}

TEST(RankDir, FolderWithoutStartIsStartedStill) {
  TemporaryFolder run;
  const RankDir dir(run.path(), Rank("a", 1, 0));
  std::filesystem::create_directories(dir.path());
  EXPECT_TRUE(dir.Create(AStart()).ok());
}

TEST(RankDir, JobIdsThatLeaveTheFolderAreRefused) {
  TemporaryFolder run;
  for (const std::string id : {"", ".", "..", "a/b", "/etc"}) {
    EXPECT_EQ(RankDir(run.path(), Rank(id, 1, 0)).Create(AStart()).code(), absl::StatusCode::kInvalidArgument) << id;
  }
  EXPECT_TRUE(std::filesystem::is_empty(run.path()));
}

TEST(RankDir, FromPath) {
  const RankDir dir("/run/x", Rank("a", 1, 7));
  for (const char* path : {"/run/x/a/1/7", "/run/x/a/1/7/", "/run/x/./a/1/7"}) {
    ASSERT_TRUE(RankDir::FromPath(path).ok()) << path;
    EXPECT_EQ(RankDir::FromPath(path)->path(), dir.path()) << path;
    EXPECT_EQ(RankDir::FromPath(path)->run(), "/run/x") << path;
    EXPECT_EQ(RankDir::FromPath(path)->rank(), dir.rank()) << path;
  }
  for (const char* path : {"", "/", "a/1/7", "/a/b/7", "/a/1/b", "/1/7"}) {
    EXPECT_EQ(RankDir::FromPath(path).status().code(), absl::StatusCode::kInvalidArgument) << path;
  }
}

TEST(RankDir, ProcessesAndExitRoundTrip) {
  TemporaryFolder run;
  const RankDir dir(run.path(), Rank("a", 1, 0));
  EXPECT_TRUE(absl::IsNotFound(dir.ReadStart().status()));
  EXPECT_TRUE(absl::IsNotFound(dir.ReadProcesses().status()));
  EXPECT_TRUE(absl::IsNotFound(dir.ReadExit().status()));
  ASSERT_TRUE(dir.Create(AStart()).ok());
  const Processes processes{{10, 12345678901234u, "boot"}, {11, 5, "boot"}};
  ASSERT_TRUE(dir.WriteProcesses(processes).ok());
  EXPECT_EQ(dir.ReadProcesses()->shim, processes.shim);
  EXPECT_EQ(dir.ReadProcesses()->trainer, processes.trainer);
  RankExit exit;
  exit.set_cause(RankExit::FAILED);
  exit.set_signal(9);
  exit.set_message("killed by signal 9 (SIGKILL)");
  exit.add_last_lines("last \"line\"");
  exit.set_peak_memory_bytes(uint64_t{1} << 60);
  exit.mutable_ended()->set_seconds(1'700'000'000);
  ASSERT_TRUE(dir.WriteExit(exit).ok());
  EXPECT_EQ(dir.ReadExit()->SerializeAsString(), exit.SerializeAsString());
}

TEST(RankDir, KeysAreKeptWhateverIsInThem) {
  TemporaryFolder run;
  const RankDir dir(run.path(), Rank("a", 1, 0));
  EXPECT_FALSE(dir.KeepKey("no", "folder").ok());
  ASSERT_TRUE(dir.Create(AStart()).ok());
  EXPECT_TRUE(dir.Keys().empty());
  const std::map<std::string, std::string> keys = {{"a", std::string("\0 \n\xFF", 4)}, {" b\n", ""}, {"c", "d"}};
  for (const auto& [name, value] : keys) ASSERT_TRUE(dir.KeepKey(name, value).ok());
  EXPECT_EQ(dir.Keys(), keys);
  // A daemon was killed while it wrote a key: the torn line is ignored and damages no other key.
  const std::string whole = ReadWhole(dir.path() + "/keys").value();
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    ASSERT_TRUE(WriteDurably(dir.path() + "/keys", whole.substr(0, cut)).ok());
    for (const auto& [name, value] : dir.Keys()) EXPECT_EQ(keys.count(name) ? keys.at(name) : "none", value) << cut;
    ASSERT_TRUE(dir.KeepKey("next", "one").ok());
    EXPECT_EQ(dir.Keys()["next"], "one") << cut;
  }
}

TEST(RankDir, DamagedFilesAreNamed) {
  TemporaryFolder run;
  const RankDir dir(run.path(), Rank("a", 1, 0));
  ASSERT_TRUE(dir.Create(AStart()).ok());
  std::ofstream(dir.path() + "/processes.json") << R"({"shim": {"pid": "x"}})";
  std::ofstream(dir.path() + "/exit.json") << "{";
  std::ofstream(dir.path() + "/start.json") << R"({"argv": []})";
  for (const absl::Status& status : {dir.ReadProcesses().status(), dir.ReadExit().status(), dir.ReadStart().status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_NE(status.message().find(dir.path()), std::string::npos) << status;
  }
}

TEST(RankDir, ListsInOrderAndRemovesEmptyParents) {
  TemporaryFolder run;
  for (const RankId& id : {Rank("b", 1, 0), Rank("a", 10, 0), Rank("a", 2, 1), Rank("a", 2, 0)}) {
    ASSERT_TRUE(RankDir(run.path(), id).Create(AStart()).ok());
  }
  std::filesystem::create_directories(run.path() + "/a/not-a-number/0");
  std::ofstream(run.path() + "/lease");
  std::vector<std::string> names;
  for (const RankDir& dir : RankDir::List(run.path())) names.push_back(dir.rank().ToString());
  EXPECT_EQ(names, (std::vector<std::string>{"a/2/0", "a/2/1", "a/10/0", "b/1/0"}));
  const RankDir gone(run.path(), Rank("b", 1, 0));
  EXPECT_FALSE(gone.IsDone());
  ASSERT_TRUE(gone.MarkDone().ok());
  EXPECT_TRUE(gone.IsDone());
  ASSERT_TRUE(gone.Remove().ok());
  EXPECT_FALSE(std::filesystem::exists(run.path() + "/b"));
  EXPECT_TRUE(std::filesystem::exists(run.path() + "/a/2/0"));
}

TEST(ProcessId, TellsTheLivingFromTheDeadAndFromNamesakes) {
  const ProcessId self = Identify(getpid()).value();
  EXPECT_GT(self.start_ticks, 0u);
  EXPECT_TRUE(IsAlive(self));
  ProcessId earlier = self;
  --earlier.start_ticks;
  EXPECT_FALSE(IsAlive(earlier));
  ProcessId other_boot = self;
  other_boot.boot_id = "x";
  EXPECT_FALSE(IsAlive(other_boot));
  EXPECT_FALSE(IsAlive(ProcessId{}));

  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const ProcessId id = Identify(child).value();
  EXPECT_TRUE(IsAlive(id));
  kill(child, SIGKILL);
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_FALSE(IsAlive(id)) << "a zombie is not alive";
  EXPECT_EQ(Identify(child).value(), id) << "but it still has its name";
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(absl::IsNotFound(Identify(child).status()));
}

TEST(ProcessTable, ListsThisProcess) {
  const ProcessRow self = ReadProcess(getpid()).value();
  EXPECT_EQ(self.parent, getppid());
  EXPECT_EQ(self.group, getpgrp());
  EXPECT_EQ(self.session, getsid(0));
  const std::vector<ProcessRow> all = ListProcesses();
  EXPECT_EQ(std::count_if(all.begin(), all.end(), [](const ProcessRow& row) { return row.pid == getpid(); }), 1);
}

TEST(Lease, IsSharedAndKeptWhenOpenedAgain) {
  TemporaryFolder run;
  EXPECT_TRUE(absl::IsNotFound(Lease::Open(run.path(), false).status()));
  auto writer = Lease::Open(run.path(), true).value();
  auto reader = Lease::Open(run.path(), false).value();
  const uint64_t before = reader->Read();
  writer->Renew();
  EXPECT_EQ(reader->Read(), before + 1);
  auto restarted = Lease::Open(run.path(), true).value();
  restarted->Renew();
  EXPECT_EQ(reader->Read(), before + 2) << "a reader from before the restart still sees it";
}

TEST(ProgressPage, IsShared) {
  TemporaryFolder dir;
  EXPECT_TRUE(absl::IsNotFound(ProgressPage::Open(dir.path()).status()));
  auto writer = ProgressPage::Create(dir.path()).value();
  (*writer)->step = 7;
  auto reader = ProgressPage::Open(dir.path()).value();
  EXPECT_EQ((*reader)->step, 7u);
  (*writer)->layout = 99;
  EXPECT_EQ(ProgressPage::Open(dir.path()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ProgressReader, ReadsWhatTheTrainerWritesAndOutlivesACutPage) {
  TemporaryFolder dir;
  EXPECT_TRUE(absl::IsNotFound(ProgressReader::Open(dir.path()).status()));
  auto writer = ProgressPage::Create(dir.path()).value();
  auto reader = ProgressReader::Open(dir.path()).value();
  (*writer)->step = 7;
  (*writer)->heartbeat = 9;
  EXPECT_EQ(reader->Read()->step, 7u);
  EXPECT_EQ(reader->Read()->heartbeat, 9u);
  ASSERT_EQ(truncate((dir.path() + "/progress").c_str(), 8), 0);
  EXPECT_TRUE(absl::IsDataLoss(reader->Read().status()));
  EXPECT_TRUE(absl::IsDataLoss(ProgressReader::Open(dir.path()).status()));
}

// A trainer may be another user, who must not make the daemon wait, or read what only the daemon may.
TEST(ReadTrainersFile, OnlyRegularFilesAndNotMoreThanTheLimit) {
  TemporaryFolder dir;
  const std::string file = dir.Write("file", "0123456789");
  EXPECT_EQ(ReadTrainersFile(file, 4, 10).value(), "456789");
  EXPECT_EQ(ReadTrainersFile(file, 20, 10).value(), "");
  EXPECT_TRUE(absl::IsDataLoss(ReadTrainersFile(file, 0, 9).status()));
  ASSERT_EQ(symlink(file.c_str(), (dir.path() + "/link").c_str()), 0);
  EXPECT_TRUE(absl::IsDataLoss(ReadTrainersFile(dir.path() + "/link", 0, 99).status()));
  ASSERT_EQ(mkfifo((dir.path() + "/pipe").c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsDataLoss(ReadTrainersFile(dir.path() + "/pipe", 0, 99).status()));
  EXPECT_TRUE(absl::IsNotFound(ReadTrainersFile(dir.path() + "/none", 0, 99).status()));
}

}  // namespace
}  // namespace muster::rundir
