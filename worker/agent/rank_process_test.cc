// Which processes are a rank's: neither namesakes, to which the kernel has given their numbers, nor those that have
// ended, but all that may still hold its memory and devices.
#include "worker/agent/rank_process.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/process/spawn.h"
#include "testing/temporary_folder.h"
#include "testing/wait.h"
#include "testing/without_file_override.h"

namespace muster::agent {
namespace {

class RankProcessTest : public testing::Test {
 protected:
  RankProcessTest() : dir_(folder_.path(), {JobId("j"), 1, 0}) { EXPECT_TRUE(dir_.Create({}).ok()); }
  ~RankProcessTest() override {
    for (const pid_t pid : children_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  rundir::ProcessId Sleeper(std::vector<std::string> environment = {}, bool leads = false) {
    const auto pid = Spawn({.arguments = {"/bin/sleep", "1000"},
                            .environment = std::move(environment),
                            .leads = leads ? Program::Leads::kSession : Program::Leads::kNothing});
    EXPECT_TRUE(pid.ok()) << pid.status();
    return Child(*pid);
  }
  rundir::ProcessId Child(pid_t pid) {
    children_.push_back(pid);
    return rundir::Identify(pid).value();
  }
  std::vector<pid_t> Pids() const {
    std::vector<pid_t> pids;
    for (const rundir::ProcessRow& row : Remaining(dir_)) pids.push_back(row.pid);
    return pids;
  }
  static rundir::ProcessId StartedEarlier(rundir::ProcessId process) {
    --process.start_ticks;
    return process;
  }

  TemporaryFolder folder_;
  rundir::RankDir dir_;
  std::vector<pid_t> children_;
};

TEST_F(RankProcessTest, ANamesakeIsNoneOfTheRanks) {
  const rundir::ProcessId shim = Sleeper(), trainer = Sleeper();
  ASSERT_TRUE(dir_.WriteProcesses({shim, trainer}).ok());
  EXPECT_EQ(Pids(), (std::vector<pid_t>{shim.pid, trainer.pid}));
  ASSERT_TRUE(dir_.WriteProcesses({StartedEarlier(shim), StartedEarlier(trainer)}).ok());
  EXPECT_EQ(Pids(), std::vector<pid_t>());
  EXPECT_TRUE(RankProcess::Adopt(shim).ok());
  EXPECT_TRUE(absl::IsNotFound(RankProcess::Adopt(StartedEarlier(shim)).status()));
}

TEST_F(RankProcessTest, ARankWithoutAnExitSaysWhatHappenedToItsParent) {
  const auto why = [&] { return std::get<Ended>(Examine(dir_)).exit.message(); };
  const rundir::ProcessId gone = StartedEarlier(Sleeper());
  ASSERT_TRUE(dir_.WriteProcesses({gone, gone}).ok());
  std::ofstream(dir_.ReservePath()) << "room";
  EXPECT_EQ(why(), "rank 0 vanished: its parent muster-step was killed, and the trainer with it");
  std::filesystem::remove(dir_.ReservePath());  // as on a full disk
  EXPECT_EQ(why(), absl::StrCat("rank 0 vanished: how it ended could not be written to ", dir_.path(),
                                ": see df, and the worker's --run-dir"));
  std::ofstream(dir_.ReservePath()) << "room";
  std::filesystem::permissions(dir_.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  WithoutFileOverride([&] {
    EXPECT_EQ(why(),
              absl::StrCat("rank 0 vanished: its parent muster-step was killed, or could not write how it "
                           "ended, since the folder ",
                           dir_.path(), " is not writable (Permission denied): see ls -ld, and mount for its disk"));
  });
  std::filesystem::permissions(dir_.path(), std::filesystem::perms::owner_all);
  rundir::ProcessId earlier = gone;
  earlier.boot_id = "another";
  ASSERT_TRUE(dir_.WriteProcesses({earlier, earlier}).ok());
  EXPECT_EQ(why(), "rank 0 vanished: its node was rebooted");
}

TEST_F(RankProcessTest, WhatMadeItselfASessionIsKnownByItsEnvironment) {
  const rundir::ProcessId shim = Sleeper();
  ASSERT_TRUE(dir_.WriteProcesses({StartedEarlier(shim), {}}).ok());
  const rundir::ProcessId own = Sleeper({absl::StrCat(kRankDirVariable, "=", dir_.path())}, /*leads=*/true);
  Sleeper({absl::StrCat(kRankDirVariable, "=", dir_.path(), "0")}, /*leads=*/true);  // of another rank
  EXPECT_TRUE(Eventually([&] { return Pids() == std::vector<pid_t>{own.pid}; }));
}

// Also without that variable, of which a program may rid its children.
TEST_F(RankProcessTest, TheTrainersGroupIsTheRanks) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t shim = fork();
  if (shim == 0) {
    setsid();
    if (fork() == 0) {
      setpgid(0, 0);
      pid_t pids[2] = {getpid(), fork()};
      if (pids[1] != 0 && write(ends[1], pids, sizeof pids) < 0) _exit(1);
    }
    while (true) pause();
  }
  const rundir::ProcessId id = Child(shim);
  pid_t pids[2];
  ASSERT_EQ(read(ends[0], pids, sizeof pids), static_cast<ssize_t>(sizeof pids));
  close(ends[0]), close(ends[1]);
  ASSERT_TRUE(dir_.WriteProcesses({StartedEarlier(id), rundir::Identify(pids[0]).value()}).ok());
  kill(pids[0], SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Pids() == std::vector<pid_t>{pids[1]}; }));
  kill(pids[1], SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Pids().empty(); }));
}

TEST_F(RankProcessTest, AProcessHasEndedWhenItsLastThreadHas) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    std::thread([in = ends[0], out = ends[1]] {
      close(out);
      char byte = 0;
      [[maybe_unused]] const ssize_t n = read(in, &byte, 1);  // until the parent closes its end
      _exit(0);
    }).detach();
    syscall(SYS_exit, 0);  // the first thread alone
  }
  close(ends[0]);
  const rundir::ProcessId trainer = Child(pid);
  ASSERT_TRUE(dir_.WriteProcesses({StartedEarlier(trainer), trainer}).ok());
  ASSERT_TRUE(Eventually([&] { return rundir::ReadProcess(pid)->state == 'Z'; }));
  EXPECT_EQ(Pids(), std::vector<pid_t>{pid}) << "a thread still holds its memory";
  close(ends[1]);
  EXPECT_TRUE(Eventually([&] { return Pids().empty(); })) << "it only waits to be reaped";
}

}  // namespace
}  // namespace muster::agent
