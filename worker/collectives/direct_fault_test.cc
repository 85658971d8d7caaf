// Ranks as processes that read each other's memory: one is killed or frozen in the middle, or may not be read. Tests
// fork, so nothing else runs here.
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "worker/collectives/gloo.h"

namespace muster::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Seconds(60);

// A rendezvous shared between processes.
class Folder final : public KeyValue {
 public:
  Folder() {
    char path[] = "/tmp/direct.XXXXXX";
    path_ = mkdtemp(path);
  }
  absl::Status Set(const std::string& name, const std::string& value) override {
    std::ofstream(File(name) + ".part", std::ios::binary) << value;
    std::filesystem::rename(File(name) + ".part", File(name));
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Wait(const std::string& name, absl::Duration timeout) override {
    const absl::Time deadline = absl::Now() + timeout;
    while (!std::filesystem::exists(File(name))) {
      if (absl::Now() > deadline) return absl::DeadlineExceededError(absl::StrCat(name, " was not set"));
      absl::SleepFor(absl::Milliseconds(1));
    }
    std::ifstream in(File(name), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  void Remove() { std::filesystem::remove_all(path_); }

 private:
  std::string File(const std::string& name) const {
    return absl::StrCat(path_, "/", absl::StrReplaceAll(name, {{"/", "_"}}));
  }
  std::string path_;
};

class Ranks {
 public:
  using Body = std::function<std::string(Group&, KeyValue&)>;

  // `prepare` is called in each rank's process at first. What `body` returns is the rank's answer.
  Ranks(int size, absl::Duration timeout, const Body& body, const std::function<void(int)>& prepare = nullptr) {
    for (int rank = 0; rank < size; ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (prepare) prepare(rank);
        std::string answer;
        {
          auto group = MakeGloo({.rank = rank,
                                 .size = size,
                                 .name = "world",
                                 .host = "127.0.0.1",
                                 .timeout = timeout,
                                 .join_timeout = kLong},
                                folder_);
          answer = group.ok() ? body(**group, folder_) : group.status().ToString();
        }
        (void)folder_.Set(absl::StrCat("answer/", rank), answer);
        _exit(0);
      }
      processes_.push_back(child);
    }
  }
  ~Ranks() {
    for (const pid_t process : processes_) {
      kill(process, SIGKILL);
      waitpid(process, nullptr, 0);
    }
    folder_.Remove();
  }

  KeyValue& values() { return folder_; }
  void Signal(int rank, int signal) { kill(processes_[static_cast<size_t>(rank)], signal); }
  std::string Answer(int rank) {
    const auto answer = folder_.Wait(absl::StrCat("answer/", rank), kLong);
    return answer.ok() ? *answer : answer.status().ToString();
  }

 private:
  Folder folder_;
  std::vector<pid_t> processes_;
};

constexpr float kGarbage = -1e6f;

// All-reduces until it fails, then returns the error. Fills its tensor with garbage as soon as that is allowed: no rank
// may accept a sum of that garbage.
std::string SumUntilItFails(Group& group, KeyValue& values) {
  const int size = group.size();
  const at::Tensor sum = at::empty({400'000});
  for (int i = 0;; ++i) {
    sum.fill_(group.rank() + i);
    const absl::Status status = group.AllReduce(sum)->Wait();
    const bool right = !status.ok() || sum.eq(size * i + size * (size - 1) / 2).all().item<bool>();
    sum.fill_(kGarbage);
    if (!right) return absl::StrCat("the sum of round ", i, " is wrong");
    if (i == 3) (void)values.Set(absl::StrCat("going/", group.rank()), "");
    if (status.ok()) continue;
    (void)values.Set(absl::StrCat("failed/", group.rank()), "");
    (void)values.Wait("over", kLong);  // stays alive, so that only its control page shows the failure
    return std::string(status.message());
  }
}

TEST(DirectFault, AKilledRankIsNamedAtOnce) {
  Ranks ranks(3, absl::Seconds(50), SumUntilItFails);
  ASSERT_TRUE(ranks.values().Wait("going/1", kLong).ok());
  const absl::Time killed = absl::Now();
  ranks.Signal(1, SIGKILL);
  ASSERT_TRUE(ranks.values().Wait("failed/0", kLong).ok());
  ASSERT_TRUE(ranks.values().Wait("failed/2", kLong).ok());
  EXPECT_LT(absl::Now() - killed, absl::Seconds(20)) << "not by the deadline of 50 s";
  ASSERT_TRUE(ranks.values().Set("over", "").ok());
  for (const int rank : {0, 2}) EXPECT_THAT(ranks.Answer(rank), HasSubstr("rank 1 is gone"));
}

TEST(DirectFault, AFrozenRankIsNamedAtTheDeadlineAndBelievesNothingLater) {
  Ranks ranks(3, absl::Seconds(10), SumUntilItFails);  // also of the rounds before, on a busy machine
  ASSERT_TRUE(ranks.values().Wait("going/1", kLong).ok());
  ranks.Signal(1, SIGSTOP);
  ASSERT_TRUE(ranks.values().Wait("failed/0", kLong).ok());
  ASSERT_TRUE(ranks.values().Wait("failed/2", kLong).ok());
  ranks.Signal(1, SIGCONT);
  ASSERT_TRUE(ranks.values().Wait("failed/1", kLong).ok());
  ASSERT_TRUE(ranks.values().Set("over", "").ok());
  for (const int rank : {0, 2}) {
    EXPECT_THAT(ranks.Answer(rank), AllOf(HasSubstr("all-reduce"), HasSubstr("rank 1 does not answer (frozen")));
  }
  EXPECT_THAT(ranks.Answer(1), AllOf(HasSubstr("failed"), Not(HasSubstr("wrong"))));
}

void DropCapabilities() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  syscall(SYS_capset, &header, none);
}

// Which transport the rank used, and whether the result was right.
std::string Way(Group& group, KeyValue&) {
  const at::Tensor values = at::full({10}, 1.0f);
  const std::unique_ptr<Work> work = group.ReduceShares({{values, 0}});
  if (!work->Wait().ok()) return "failed";
  if (group.rank() == 0 && values[9].item<float>() != static_cast<float>(group.size())) return "wrong";
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone).string().find("memfd:") != std::string::npos) return "left open";
  }
  return work->done_at().has_value() ? "direct" : "Gloo";
}

TEST(DirectFault, NoPrivilegeIsNeeded) {
  Ranks ranks(3, kLong, Way, [](int) { DropCapabilities(); });
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.Answer(rank), "direct");
}

TEST(DirectFault, OneThatMayNotBeReadSendsAllThroughGloo) {
  Ranks ranks(3, kLong, Way, [](int rank) {
    DropCapabilities();
    if (rank == 1) prctl(PR_SET_DUMPABLE, 0);
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.Answer(rank), "Gloo");
}

// One more group between the two ranks, as a pipeline has one for each edge and direction.
std::unique_ptr<Group> Lane(const Group& world, KeyValue& values, const std::string& name, bool direct,
                            absl::Duration timeout = kLong) {
  return MakeGloo({.rank = world.rank(),
                   .size = world.size(),
                   .name = name,
                   .host = "127.0.0.1",
                   .timeout = timeout,
                   .join_timeout = kLong,
                   .direct = direct},
                  values)
      .value();
}

// Two lanes each way, many messages of all sizes in each, all in flight at once. More than the sender's posts hold.
std::string CrossMessages(Group& world, KeyValue& values, bool direct) {
  constexpr int kMessages = 150;
  const int rank = world.rank();
  std::vector<std::unique_ptr<Group>> lanes;
  std::vector<at::Tensor> received;
  std::vector<std::unique_ptr<Work>> works;
  for (int lane = 0; lane < 4; ++lane) lanes.push_back(Lane(world, values, absl::StrCat("lane", lane), direct));
  const auto elements = [](int m) { return m % 50 == 7 ? 2'000'000 : m * m % 977; };
  for (int m = 0; m < kMessages; ++m) {
    for (int lane = 0; lane < 4; ++lane) {
      if (lane % 2 == rank) {
        works.push_back(lanes[lane]->Send(at::full({elements(m)}, 1000.0f * lane + m), 1 - rank));
      } else {
        received.push_back(at::full({elements(m)}, -1.0f));
        works.push_back(lanes[lane]->Recv(received.back(), 1 - rank));
      }
    }
  }
  for (size_t i = works.size(); i-- > 0;) {
    if (const absl::Status status = works[i]->Wait(); !status.ok()) return status.ToString();
  }
  size_t next = 0;
  for (int m = 0; m < kMessages; ++m) {
    for (int lane = 0; lane < 4; ++lane) {
      if (lane % 2 == rank) continue;
      if (!received[next++].eq(1000.0f * lane + m).all().item<bool>()) return absl::StrCat(lane, ": ", m, " is wrong");
    }
  }
  return "right";
}

TEST(DirectFault, MessagesCrossBetweenProcesses) {
  for (const bool direct : {true, false}) {
    Ranks ranks(2, kLong, [=](Group& world, KeyValue& values) { return CrossMessages(world, values, direct); });
    for (const int rank : {0, 1}) EXPECT_EQ(ranks.Answer(rank), "right") << (direct ? "direct" : "Gloo");
  }
}

TEST(DirectFault, AKilledRankOfAMessageIsNamedAtOnce) {
  for (const bool direct : {true, false}) {
    for (const bool sends : {true, false}) {
      Ranks ranks(2, absl::Seconds(50), [=](Group& world, KeyValue& values) -> std::string {
        const auto lane = Lane(world, values, "lane", direct, absl::Seconds(50));
        const at::Tensor message = at::full({100'000}, 1.0f);
        if (world.rank() == 1) {
          (void)values.Set("ready", "");
          (void)values.Wait("never", kLong);
          return "";
        }
        (void)values.Wait("ready", kLong);
        const auto work = sends ? lane->Send(message, 1) : lane->Recv(message, 1);
        (void)values.Set("waits", "");
        return std::string(work->Wait().message());
      });
      ASSERT_TRUE(ranks.values().Wait("waits", kLong).ok());
      const absl::Time killed = absl::Now();
      ranks.Signal(1, SIGKILL);
      EXPECT_THAT(ranks.Answer(0), AllOf(HasSubstr(sends ? "send" : "receive"), HasSubstr("rank 1 is gone")))
          << (direct ? "direct" : "Gloo");
      EXPECT_LT(absl::Now() - killed, absl::Seconds(20)) << "not by the deadline of 50 s";
    }
  }
}

}  // namespace
}  // namespace muster::collectives
