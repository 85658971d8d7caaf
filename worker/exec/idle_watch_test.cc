#include "worker/exec/idle_watch.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "testing/wait.h"
#include "worker/exec/activity.h"

namespace muster::exec {
namespace {

class IdleWatchTest : public ::testing::Test {
 protected:
  // Looks once a second; the second at which it warned first, 0: it did not.
  int Warned(int seconds, const std::function<Activity(int)>& activity, bool gpu = false) {
    for (int i = 1; i <= seconds; ++i) {
      now_ = now_ + absl::Seconds(1);
      if (watch_.IsDue(now_) && watch_.Look(
                                    activity(i), [&](bool) { return ++asked_, gpu; }, now_))
        return i;
    }
    return 0;
  }
  static Activity Nothing(int) { return {absl::Seconds(5), 100}; }

  IdleWatch watch_{absl::Seconds(20)};
  SteadyTime now_ = SteadyTime::FromNanoseconds(1'000'000'000'000);
  int asked_ = 0;
};

TEST_F(IdleWatchTest, WarnsOnceAfterTheLimit) {
  const int at = Warned(60, Nothing);
  EXPECT_GE(at, 20);
  EXPECT_LE(at, 30);
  EXPECT_GE(watch_.idle(), absl::Seconds(20));
  EXPECT_EQ(Warned(600, Nothing), 0) << "again only after it has done something";
  EXPECT_EQ(Warned(10, [](int i) { return Activity{absl::Seconds(6 + i), 100}; }), 0);
  EXPECT_GT(Warned(60, Nothing), 0);
}

TEST_F(IdleWatchTest, ComputingAndWritingAreNoIdling) {
  EXPECT_EQ(Warned(600, [](int i) { return Activity{0.02 * absl::Seconds(i), 100}; }), 0) << "2% of a core";
  EXPECT_EQ(Warned(600,
                   [](int i) {
                     return Activity{absl::Seconds(60), 100u + static_cast<uint64_t>(i) / 15};
                   }),
            0)
      << "a line of output now and then";
  EXPECT_EQ(asked_, 0);
  EXPECT_GT(Warned(600,
                   [](int i) {
                     return Activity{absl::Minutes(2) + 0.001 * absl::Seconds(i), 200};
                   }),
            0)
      << "a thread that only wakes up";
}

TEST_F(IdleWatchTest, ABusyGpuIsNoIdling) { EXPECT_EQ(Warned(600, Nothing, /*gpu=*/true), 0); }

TEST_F(IdleWatchTest, WaitsForTheAnswerAboutTheGpu) {
  std::optional<bool> answer;
  std::vector<bool> anew;
  const auto look = [&] {
    now_ = now_ + absl::Seconds(5);
    return watch_.Look(
        Nothing(0), [&](bool a) { return anew.push_back(a), answer; }, now_);
  };
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(look()) << "not known yet";
  EXPECT_EQ(anew, (std::vector<bool>{true, false, false}));
  answer = false;
  EXPECT_TRUE(look());
}

TEST_F(IdleWatchTest, TimeInWhichThisProcessDidNotRunDoesNotCount) {
  EXPECT_EQ(Warned(8, Nothing), 0);
  now_ = now_ + absl::Hours(1);
  EXPECT_EQ(Warned(1, Nothing), 0);
}

TEST_F(IdleWatchTest, ZeroIsNever) {
  IdleWatch never(absl::ZeroDuration());
  EXPECT_FALSE(never.IsDue(now_));
}

std::optional<bool> AnswerOf(GpuLook& look) {
  std::optional<bool> answer = look.Busy(/*anew=*/true);
  EXPECT_TRUE(Eventually([&] { return answer.has_value() || (answer = look.Busy(false)).has_value(); }));
  return answer;
}

// Of the fake's GPUs GPU-a computes and GPU-c does not.
TEST(GpuLook, AsksTheDriver) {
  const std::string library = "worker/agent/libfake-nvml.so";
  GpuLook busy({"HOME=/", "CUDA_VISIBLE_DEVICES=GPU-c,GPU-a"}, library), idle({"CUDA_VISIBLE_DEVICES=GPU-c"}, library);
  EXPECT_EQ(AnswerOf(busy), true);
  EXPECT_EQ(AnswerOf(idle), false);
  EXPECT_EQ(AnswerOf(idle), false) << "again";
  GpuLook none({"CUDA_VISIBLE_DEVICES="}, library), missing({"CUDA_VISIBLE_DEVICES=GPU-a"}, "no-such-library.so");
  EXPECT_EQ(none.Busy(true), false) << "without a question";
  EXPECT_EQ(AnswerOf(missing), false);
}

// A child of a child counts, and so do its bytes; it writes and computes until it is killed.
TEST(ReadActivity, CountsDescendants) {
  const pid_t program = fork();
  if (program == 0) {
    execl("/bin/sh", "sh", "-c", "(while :; do echo x; done > /dev/null) & wait", nullptr);
    _exit(127);
  }
  ASSERT_GT(program, 0);
  const Activity before = ReadActivity(program);
  EXPECT_TRUE(Eventually([&] {
    const Activity now = ReadActivity(program);
    return now.cpu > before.cpu && now.bytes > before.bytes + 1000 && ProcessesOf(program).size() == 2;
  }));
  for (const pid_t pid : ProcessesOf(program)) kill(pid, SIGKILL);
  waitpid(program, nullptr, 0);
  EXPECT_EQ(ProcessesOf(program).size(), 1u);
}

// One whose parent has ended is no descendant any more, but in the program's session.
TEST(ReadActivity, CountsTheSession) {
  const pid_t program = fork();
  if (program == 0) {
    setsid();
    execl("/bin/sh", "sh", "-c", "(sleep 1000 &); exec sleep 1000", nullptr);
    _exit(127);
  }
  ASSERT_GT(program, 0);
  EXPECT_TRUE(Eventually([&] { return ProcessesOf(program).size() == 2; }));
  for (const pid_t pid : ProcessesOf(program)) {
    EXPECT_NE(pid, getpid());
    kill(pid, SIGKILL);
  }
  waitpid(program, nullptr, 0);
}

}  // namespace
}  // namespace muster::exec
