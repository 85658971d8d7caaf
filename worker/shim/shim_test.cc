// The real shim with shells as trainers.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "testing/temporary_folder.h"
#include "testing/wait.h"
#include "worker/rundir/log.h"
#include "worker/rundir/process_table.h"
#include "worker/rundir/rundir.h"

namespace muster::step {
namespace {

class StepTest : public ::testing::Test {
 protected:
  StepTest() : dir_(run_.path(), {JobId("job"), 1, 0}) {}

  ~StepTest() override {
    if (shim_ > 0) {
      kill(shim_, SIGKILL);
      waitpid(shim_, nullptr, 0);
    }
  }

  static rundir::Start Shell(const std::string& script) {
    rundir::Start start;
    start.argv = {"/bin/sh", "-c", script};
    start.environment = {"PATH=/usr/bin:/bin", "ANSWER=42"};
    start.working_directory = "/";
    start.kill_grace = absl::Milliseconds(300);
    return start;
  }

  void Spawn(const rundir::Start& start) {
    ASSERT_TRUE(dir_.Create(start).ok());
    const std::string binary = std::filesystem::absolute("worker/shim/muster-step");
    std::string path = dir_.path();
    char* argv[] = {const_cast<char*>(binary.c_str()), path.data(), nullptr};
    ASSERT_EQ(posix_spawn(&shim_, binary.c_str(), nullptr, nullptr, argv, environ), 0);
  }

  // The shim's own end.
  RankExit Wait() {
    int status = 0;
    EXPECT_TRUE(Eventually([&] { return waitpid(shim_, &status, WNOHANG) == shim_; })) << Log();
    shim_ = 0;
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    const auto exit = dir_.ReadExit();
    EXPECT_TRUE(exit.ok()) << exit.status();
    return exit.value_or(RankExit());
  }

  std::string Log() { return rundir::ReadLog(dir_.path(), 0, 1 << 20)->bytes; }
  bool LogHas(const std::string& text) {
    return Eventually([&] { return absl::StrContains(Log(), text); });
  }
  // A process id that the script printed as "name=number".
  pid_t Printed(const std::string& name) {
    EXPECT_TRUE(LogHas(name + "="));
    pid_t pid = 0;
    for (absl::string_view line : absl::StrSplit(Log(), '\n')) {
      if (absl::ConsumePrefix(&line, name + "=")) {
        EXPECT_TRUE(absl::SimpleAtoi(line, &pid));
      }
    }
    return pid;
  }
  static bool Gone(pid_t pid) {
    return Eventually([pid] {
      const auto row = rundir::ReadProcess(pid);
      return !row.ok() || row->state == 'Z';
    });
  }

  TemporaryFolder run_;
  rundir::RankDir dir_;
  pid_t shim_ = 0;
};

TEST_F(StepTest, CleanEndWithOutputAndEnvironment) {
  Spawn(Shell("echo out $ANSWER; echo err >&2; cat; pwd"));
  const RankExit exit = Wait();
  EXPECT_EQ(exit.cause(), RankExit::COMPLETED);
  EXPECT_EQ(exit.exit_code(), 0);
  EXPECT_GT(exit.peak_memory_bytes(), 100'000u);
  EXPECT_GT(exit.ended().seconds(), 1'600'000'000);
  EXPECT_EQ(Log(), "out 42\nerr\n/\n");
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/reserve"));
}

TEST_F(StepTest, FailureTellsCodeAndLastLines) {
  Spawn(Shell("for i in $(seq 1 100); do echo line $i; done; exit 7"));
  const RankExit exit = Wait();
  EXPECT_EQ(exit.cause(), RankExit::FAILED);
  EXPECT_EQ(exit.exit_code(), 7);
  EXPECT_EQ(exit.message(), "rank 0 exited with code 7");
  ASSERT_EQ(exit.last_lines_size(), 20);
  EXPECT_EQ(exit.last_lines(0), "line 81");
  EXPECT_EQ(exit.last_lines(19), "line 100");
}

TEST_F(StepTest, SignalOfAnotherIsAFailure) {
  Spawn(Shell("kill -SEGV $$"));
  const RankExit exit = Wait();
  EXPECT_EQ(exit.cause(), RankExit::FAILED);
  EXPECT_EQ(exit.signal(), SIGSEGV);
}

TEST_F(StepTest, MissingProgramAndFolderAreSpawnFailures) {
  rundir::Start start = Shell("true");
  start.argv[0] = "/no/such/program";
  Spawn(start);
  RankExit exit = Wait();
  EXPECT_EQ(exit.cause(), RankExit::SPAWN_FAILED);
  EXPECT_EQ(exit.message(), "rank 0 could not be started: cannot run /no/such/program: No such file or directory");
}

TEST_F(StepTest, FileThatIsNoProgramIsASpawnFailure) {
  rundir::Start start = Shell("true");
  start.argv[0] = "/etc/passwd";
  Spawn(start);
  const RankExit exit = Wait();
  EXPECT_EQ(exit.cause(), RankExit::SPAWN_FAILED);
  EXPECT_TRUE(absl::StrContains(exit.message(), "Permission denied")) << exit.message();
}

TEST_F(StepTest, MissingWorkingDirectoryIsASpawnFailure) {
  rundir::Start start = Shell("true");
  start.working_directory = "/no/such/folder";
  Spawn(start);
  const RankExit exit = Wait();
  EXPECT_EQ(exit.cause(), RankExit::SPAWN_FAILED);
  EXPECT_TRUE(absl::StrContains(exit.message(), "cannot enter folder /no/such/folder")) << exit.message();
}

TEST_F(StepTest, TermIsForwardedAndATrainerMayEndWell) {
  Spawn(Shell("trap 'echo stopping; exit 0' TERM; echo ready; while :; do sleep 0.02; done"));
  ASSERT_TRUE(LogHas("ready"));
  kill(shim_, SIGTERM);
  const RankExit exit = Wait();
  EXPECT_EQ(exit.cause(), RankExit::COMPLETED);  // the worker knows of the stop request
  EXPECT_TRUE(absl::StrContains(Log(), "stopping"));
}

TEST_F(StepTest, TrainerThatIgnoresTermIsKilledAfterTheGrace) {
  Spawn(Shell("trap '' TERM; echo ready; while :; do sleep 0.02; done"));
  ASSERT_TRUE(LogHas("ready"));
  kill(shim_, SIGTERM);
  const RankExit exit = Wait();
  EXPECT_EQ(exit.cause(), RankExit::STOPPED);
  EXPECT_EQ(exit.signal(), SIGKILL);
  EXPECT_TRUE(absl::StrContains(exit.message(), "did not end in time")) << exit.message();
}

TEST_F(StepTest, Usr1KillsAtOnce) {
  rundir::Start start = Shell("trap '' TERM; echo ready; while :; do sleep 0.02; done");
  start.kill_grace = absl::Hours(1);
  Spawn(start);
  ASSERT_TRUE(LogHas("ready"));
  kill(shim_, SIGTERM);
  kill(shim_, SIGUSR1);
  EXPECT_EQ(Wait().cause(), RankExit::STOPPED);
}

TEST_F(StepTest, AStoppedTrainerStillReceivesTerm) {
  rundir::Start start = Shell("trap 'exit 0' TERM; echo ready; kill -STOP $$; while :; do sleep 0.02; done");
  start.kill_grace = absl::Hours(1);
  Spawn(start);
  ASSERT_TRUE(LogHas("ready"));
  kill(shim_, SIGTERM);
  EXPECT_EQ(Wait().exit_code(), 0);
}

TEST_F(StepTest, LeftoverProcessesAreKilledAndDoNotDelayTheEnd) {
  // One grandchild in the trainer's group, one in a session of its own; both hold the pipe.
  Spawn(
      Shell("sleep 1000 & echo near=$!; setsid sh -c 'echo far=$$; exec sleep 1000' & "
            "while ! false; do sleep 0.02; done"));
  const pid_t near = Printed("near");
  const pid_t far = Printed("far");
  kill(dir_.ReadProcesses()->trainer.pid, SIGKILL);
  const absl::Time begin = absl::Now();
  EXPECT_EQ(Wait().cause(), RankExit::FAILED);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
  EXPECT_TRUE(Gone(near));
  EXPECT_TRUE(Gone(far));
}

TEST_F(StepTest, TrainerDiesWithItsShim) {
  Spawn(Shell("echo ready; exec sleep 1000"));
  ASSERT_TRUE(LogHas("ready"));
  const rundir::Processes processes = dir_.ReadProcesses().value();
  EXPECT_EQ(processes.shim.pid, shim_);
  EXPECT_TRUE(rundir::IsAlive(processes.shim));
  EXPECT_TRUE(rundir::IsAlive(processes.trainer));
  kill(shim_, SIGKILL);
  EXPECT_TRUE(Gone(processes.trainer.pid));
  EXPECT_TRUE(absl::IsNotFound(dir_.ReadExit().status()));
}

TEST_F(StepTest, LeaseThatStandsStillEndsTheTrainer) {
  auto lease = rundir::Lease::Open(run_.path(), true).value();
  rundir::Start start = Shell("trap '' TERM; echo ready; while :; do sleep 0.02; done");
  start.orphan_grace = absl::Seconds(1);
  Spawn(start);
  // Earlier renewals do not count.
  ASSERT_TRUE(Eventually([&] {
    lease->Renew();
    return absl::StrContains(Log(), "ready");
  }));
  const RankExit exit = Wait();
  EXPECT_EQ(exit.cause(), RankExit::ORPHANED);
  EXPECT_TRUE(absl::StrContains(Log(), "no contact with the coordinator for 1s")) << Log();
}

TEST_F(StepTest, LeaseThatRisesKeepsTheTrainer) {
  auto lease = rundir::Lease::Open(run_.path(), true).value();
  // Lives more than two graces long.
  rundir::Start start = Shell("sleep 11; echo survived");
  start.orphan_grace = absl::Seconds(5);
  Spawn(start);
  std::jthread renewals([&](std::stop_token stop) {
    while (!stop.stop_requested()) {
      lease->Renew();
      absl::SleepFor(absl::Milliseconds(50));
    }
  });
  EXPECT_EQ(Wait().cause(), RankExit::COMPLETED);
  EXPECT_TRUE(absl::StrContains(Log(), "survived"));
}

TEST_F(StepTest, ARankLivesOnce) {
  Spawn(Shell("echo ready; exec sleep 1000"));
  ASSERT_TRUE(LogHas("ready"));
  const auto second = [this] {
    const std::string binary = std::filesystem::absolute("worker/shim/muster-step");
    std::string path = dir_.path();
    char* argv[] = {const_cast<char*>(binary.c_str()), path.data(), nullptr};
    pid_t pid = 0;
    int status = 0;
    EXPECT_EQ(posix_spawn(&pid, binary.c_str(), nullptr, nullptr, argv, environ), 0);
    EXPECT_TRUE(Eventually([&] { return waitpid(pid, &status, WNOHANG) == pid; }));
    return status;
  };
  EXPECT_NE(second(), 0) << "beside the first";
  kill(shim_, SIGTERM);
  Wait();
  EXPECT_NE(second(), 0) << "after it";
  EXPECT_EQ(Log(), "ready\n");
}

TEST_F(StepTest, MuchOutputIsKeptInSegments) {
  Spawn(Shell("yes 0123456 | head -c 5000000; echo; echo last"));
  EXPECT_EQ(Wait().cause(), RankExit::COMPLETED);
  EXPECT_EQ(rundir::LogEnd(dir_.path()), 5'000'006u);
  EXPECT_EQ(rundir::ReadLog(dir_.path(), 5'000'001, 100)->bytes, "last\n");
}

TEST_F(StepTest, FullDiskNeitherBlocksNorHidesTheEnd) {
  ASSERT_TRUE(dir_.Create(Shell("yes 0123456 | head -c 3000000; echo; echo the reason; exit 5")).ok());
  const std::string command = absl::StrCat(
      "ulimit -f 1536; exec ", std::filesystem::absolute("worker/shim/muster-step").string(), " ", dir_.path());
  char* argv[] = {const_cast<char*>("sh"), const_cast<char*>("-c"), const_cast<char*>(command.c_str()), nullptr};
  ASSERT_EQ(posix_spawn(&shim_, "/bin/sh", nullptr, nullptr, argv, environ), 0);
  const RankExit exit = Wait();
  EXPECT_EQ(exit.exit_code(), 5);
  ASSERT_GT(exit.last_lines_size(), 0);
  EXPECT_EQ(exit.last_lines(exit.last_lines_size() - 1), "the reason");
  EXPECT_LE(rundir::LogEnd(dir_.path()), 1536u * 512);
}

TEST_F(StepTest, TheTrainerIsRestricted) {
  Spawn(
      Shell("grep NoNewPrivs /proc/self/status; ulimit -c; ls /proc/self/fd | wc -l; "
            "echo group=$(cut -d' ' -f5 /proc/$$/stat); echo pid=$$; grep SigBlk /proc/self/status"));
  EXPECT_EQ(Wait().exit_code(), 0);
  const std::vector<std::string> lines = absl::StrSplit(Log(), '\n');
  ASSERT_GE(lines.size(), 6u) << Log();
  EXPECT_EQ(lines[0], "NoNewPrivs:\t1");
  EXPECT_EQ(lines[1], "0");
  EXPECT_EQ(lines[2], "4") << "0, 1, 2 and the folder that ls itself reads";
  EXPECT_EQ(Printed("group"), Printed("pid"));
  EXPECT_EQ(lines[5], "SigBlk:\t0000000000000000");
}

TEST_F(StepTest, ShimOutlivesTheGroupOfItsParent) {
  Spawn(Shell("echo ready; exec sleep 1000"));
  ASSERT_TRUE(LogHas("ready"));
  EXPECT_EQ(rundir::ReadProcess(shim_)->session, shim_);
  kill(shim_, SIGHUP);
  kill(shim_, SIGINT);
  kill(shim_, SIGTERM);
  EXPECT_EQ(Wait().signal(), SIGTERM);
}

}  // namespace
}  // namespace muster::step
