#include "common/process/spawn.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "testing/temporary_folder.h"

namespace muster {
namespace {

class SpawnTest : public ::testing::Test {
 protected:
  // What a shell prints on both streams.
  std::string Run(const std::string& line, Program program = {}) {
    const int out = open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
    program.arguments = {"/bin/sh", "-c", line};
    program.environment = OwnEnvironment();
    program.output = program.error = out;
    const absl::StatusOr<pid_t> pid = Spawn(std::move(program));
    close(out);
    EXPECT_TRUE(pid.ok()) << pid.status();
    pid_ = *pid;
    EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_);
    std::ifstream in(path_);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/out";
  pid_t pid_ = -1;
};

TEST_F(SpawnTest, StandardStreams) {
  EXPECT_EQ(Run("cat; echo out; echo error >&2"), "out\nerror\n") << "its input is empty";
  const int in = open(folder_.Write("in", "text\n").c_str(), O_RDONLY);
  EXPECT_EQ(Run("cat", {.input = in}), "text\n");
  close(in);
}

TEST_F(SpawnTest, NoOtherDescriptorAndNoSignalIsPassedOn) {
  const int open_here = dup(STDIN_FILENO);  // without close-on-exec
  ASSERT_GE(open_here, 3);
  signal(SIGPIPE, SIG_IGN);
  sigset_t pipe, before;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  sigprocmask(SIG_BLOCK, &pipe, &before);
  EXPECT_EQ(Run(absl::StrCat("[ -e /proc/$$/fd/", open_here, " ] && echo leaked")), "");
  // proc(5), /proc/PID/status: masks in hexadecimal, signal 1 in the lowest bit.
  for (const char* mask : {"SigIgn", "SigBlk"}) {
    const std::string text = Run(absl::StrCat("sed -n 's/^", mask, ":\\t/0x/p' /proc/self/status"));
    EXPECT_EQ(std::stoull(text, nullptr, 16) & (1u << (SIGPIPE - 1)), 0u) << mask << " " << text;
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  signal(SIGPIPE, SIG_DFL);
  close(open_here);
}

// Fields 5 and 6 of proc(5), /proc/PID/stat: the group and the session.
TEST_F(SpawnTest, LeadsAGroupOrASession) {
  const std::string line = "cut -d ' ' -f 5,6 /proc/$$/stat";
  EXPECT_EQ(Run(line), absl::StrCat(getpgrp(), " ", getsid(0), "\n"));
  const std::string group = Run(line, {.leads = Program::Leads::kGroup});
  EXPECT_EQ(group, absl::StrCat(pid_, " ", getsid(0), "\n"));
  const std::string session = Run(line, {.leads = Program::Leads::kSession});
  EXPECT_EQ(session, absl::StrCat(pid_, " ", pid_, "\n"));
}

TEST_F(SpawnTest, SaysWhatCannotRun) {
  const absl::Status status = Spawn({.arguments = {"/no/such/program"}}).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_NE(status.message().find("cannot run /no/such/program"), std::string::npos) << status;
}

}  // namespace
}  // namespace muster
