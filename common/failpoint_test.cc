#include "common/failpoint.h"

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace muster::failpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class FailpointTest : public ::testing::Test {
 protected:
  FailpointTest() { EXPECT_TRUE(Arm("").ok()); }
  ~FailpointTest() override { EXPECT_TRUE(Arm("").ok()); }

  // The exit status of a child process that runs `what`.
  static int StatusOf(const std::function<void()>& what) {
    const pid_t child = fork();
    if (child == 0) {
      what();
      _exit(0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
  }
};

TEST_F(FailpointTest, UnarmedDoesNothing) {
  EXPECT_EQ(Hit("a"), 0);
  EXPECT_TRUE(Passed().empty());
}

TEST_F(FailpointTest, FailsAtThePassingNamed) {
  ASSERT_TRUE(Arm("a.write=ENOSPC@3;b=EIO;c.*=EACCES@*").ok());
  EXPECT_EQ(Hit("a.write"), 0);
  EXPECT_EQ(Hit("a.write"), 0);
  EXPECT_EQ(Hit("a.write"), ENOSPC);
  EXPECT_EQ(Hit("a.write"), 0);
  EXPECT_EQ(Hit("b"), EIO);
  EXPECT_EQ(Hit("b"), 0);
  EXPECT_EQ(Hit("c.x"), EACCES);
  EXPECT_EQ(Hit("c.y"), EACCES);
  EXPECT_EQ(Hit("c.y"), EACCES);
  EXPECT_EQ(Hit("other"), 0);
}

TEST_F(FailpointTest, CountsWhatIsPassed) {
  ASSERT_TRUE(Arm("none=kill").ok());
  for (const char* name : {"a", "b", "a"}) EXPECT_EQ(Hit(name), 0);
  EXPECT_THAT(Passed(), ElementsAre(Pair("a", 2u), Pair("b", 1u)));
}

TEST_F(FailpointTest, KillsTheProcess) {
  const int status = StatusOf([] {
    if (!Arm("a=kill@2").ok()) _exit(1);
    Hit("a");
    Hit("b");
    Hit("a");
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

TEST_F(FailpointTest, SleepsWithoutHoldingUpOthers) {
  ASSERT_TRUE(Arm("a=sleep:30").ok());
  const absl::Time begin = absl::Now();
  EXPECT_EQ(Hit("a"), 0);
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(30));
}

TEST_F(FailpointTest, WhatCannotBeReadIsNamed) {
  for (const char* text : {"a", "=kill", "a=", "a=die", "a=kill@", "a=kill@0", "a=sleep:", "a=sleep:x", "b=EIO;a"}) {
    const absl::Status status = Arm(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("NAME=ACTION@N")) << text;
  }
}

TEST_F(FailpointTest, TheEnvironmentArms) {
  const auto under = [&](const char* text) {
    return StatusOf([=] {
      setenv("MUSTER_FAILPOINTS", text, 1);
      internal::state = internal::kUnread;
      _exit(Hit("a") == EIO ? 7 : 1);
    });
  };
  EXPECT_EQ(WEXITSTATUS(under("a=EIO")), 7);
  EXPECT_EQ(WEXITSTATUS(under("a=nonsense")), 2);
}

}  // namespace
}  // namespace muster::failpoint
