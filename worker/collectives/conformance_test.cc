// Conformance of the groups between CPU ranks, and their errors when a rank is missing.
#include "worker/collectives/conformance_test.h"

#include <sched.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "worker/collectives/adversarial.h"
#include "worker/collectives/device_group.h"
#include "worker/collectives/gloo_groups_test.h"
#include "worker/collectives/memory_key_value.h"
#include "worker/collectives/message_conformance_test.h"
#include "worker/collectives/peers.h"
#include "worker/collectives/threads.h"

namespace muster::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Groups Join(int size, absl::Duration timeout, bool direct) {
  // Kept for the lifetime of the groups; each is small.
  static std::vector<std::unique_ptr<MemoryKeyValue>> rendezvous;
  MemoryKeyValue& values = *rendezvous.emplace_back(std::make_unique<MemoryKeyValue>());
  return JoinGloo(size, timeout, direct, values);
}

Groups GlooGroups(int size, absl::Duration timeout) { return Join(size, timeout, false); }
Groups DirectGroups(int size, absl::Duration timeout) { return Join(size, timeout, true); }
Groups ThreadGroups(int size, absl::Duration timeout) { return MakeThreads(size, timeout); }
Groups AdversarialGroups(int size, absl::Duration timeout) { return MakeAdversarial(size, timeout); }

// A device whose collectives are those of threads, so that DeviceGroup passes the conformance test on every machine. An
// abort ends nothing: ranks that wait end at the deadline of the threads' group.
class ThreadsTransport final : public DeviceTransport {
 public:
  // Where the ranks of a group find the groups of its splits: by the split's number and color.
  struct Parts {
    Mutex mutex;
    std::map<std::pair<int, int>, Groups> groups ABSL_GUARDED_BY(mutex);
  };
  ThreadsTransport(std::unique_ptr<Group> threads, std::shared_ptr<Parts> parts)
      : threads_(std::move(threads)), parts_(std::move(parts)) {}
  absl::Status Check(const DeviceCollective&) const override { return absl::OkStatus(); }
  absl::StatusOr<bool> Begin(const DeviceCollective& collective) override {
    last_ = Start(collective);
    return true;
  }
  absl::StatusOr<bool> Ready() override {
    if (absl::Status health = threads_->Health(); !health.ok()) return health;
    return true;
  }
  absl::StatusOr<std::unique_ptr<DeviceEvent>> Record() override { return std::make_unique<Event>(last_); }
  absl::StatusOr<Part> Split(int color, int key) override {
    const at::Tensor all = at::zeros({threads_->size(), 2}, at::kLong);
    all[threads_->rank()][0] = color;
    all[threads_->rank()][1] = key;
    if (absl::Status status = threads_->AllReduce(all)->Wait(); !status.ok()) return status;
    const int split = splits_++;
    if (color == kNoColor) return nullptr;
    int size = 0, rank = 0;
    for (int r = 0; r < threads_->size(); ++r) {
      if (all[r][0].item<int64_t>() != color) continue;
      ++size;
      rank += all[r][1].item<int64_t>() < key;
    }
    const MutexLock lock(parts_->mutex);
    Groups& groups = parts_->groups[{split, color}];
    if (groups.empty()) groups = MakeThreads(size);
    return std::make_unique<ThreadsTransport>(std::move(groups[static_cast<size_t>(rank)]), std::make_shared<Parts>());
  }
  absl::StatusOr<bool> Finalize() override { return true; }
  absl::Status Destroy() override { return absl::OkStatus(); }
  void Abort() override {}

 private:
  class Event final : public DeviceEvent {
   public:
    explicit Event(std::shared_ptr<Work> work) : work_(std::move(work)) {}
    absl::StatusOr<bool> Reached() const override { return work_->done(); }
    absl::Status Block() const override { return work_->Wait(); }

   private:
    const std::shared_ptr<Work> work_;
  };

  std::unique_ptr<Work> Start(const DeviceCollective& collective) {
    using Kind = DeviceCollective::Kind;
    const RankShare& first = collective.parts.front();
    std::vector<at::Tensor> wholes;
    for (const RankShare& part : collective.parts) wholes.push_back(part.values);
    switch (collective.kind) {
      case Kind::kAllReduce:
        return threads_->AllReduce(first.values);
      case Kind::kAllGather:
        return threads_->AllGather(wholes);
      case Kind::kReduceScatter:
        return threads_->ReduceScatter(wholes);
      case Kind::kBroadcast:
        return threads_->BroadcastShares(collective.parts);
      case Kind::kReduce:
        return threads_->ReduceShares(collective.parts);
      case Kind::kSend:
        return threads_->Send(first.values, first.root);
      case Kind::kRecv:
        return threads_->Recv(first.values, first.root);
      case Kind::kAllToAll:
        return AllToAll(collective.parts);
    }
    return nullptr;
  }

  class All final : public Work {
   public:
    std::vector<std::unique_ptr<Work>> works;
    absl::Status Wait() override {
      absl::Status status = absl::OkStatus();
      for (const auto& work : works) status.Update(work->Wait());
      return status;
    }
    bool done() const override {
      return std::all_of(works.begin(), works.end(), [](const auto& work) { return work->done(); });
    }
  };
  std::unique_ptr<Work> AllToAll(const std::vector<RankShare>& parts) {
    auto all = std::make_unique<All>();
    for (size_t i = 0; i < parts.size(); i += 2) {
      all->works.push_back(threads_->Recv(parts[i + 1].values, parts[i + 1].root));
      all->works.push_back(threads_->Send(parts[i].values, parts[i].root));
    }
    return all;
  }

  const std::unique_ptr<Group> threads_;
  const std::shared_ptr<Parts> parts_;
  int splits_ = 0;
  std::shared_ptr<Work> last_;
};

Groups DeviceGroups(int size, absl::Duration timeout) {
  static std::vector<std::unique_ptr<MemoryKeyValue>> rendezvous;
  MemoryKeyValue& values = *rendezvous.emplace_back(std::make_unique<MemoryKeyValue>());
  Groups groups = MakeThreads(size, timeout);
  const auto parts = std::make_shared<ThreadsTransport::Parts>();
  for (int rank = 0; rank < size; ++rank) {
    const std::shared_ptr<Peers> peers = Peers::Join(rank, size, "world", "127.0.0.1", values).value();
    std::unique_ptr<Group>& group = groups[static_cast<size_t>(rank)];
    group = MakeDeviceGroup({.rank = rank,
                             .size = size,
                             .timeout = timeout,
                             .count = [peers] { return peers->Issue(); },
                             .diagnose = [peers] { return peers->Diagnose(); }},
                            std::make_unique<ThreadsTransport>(std::move(group), parts));
  }
  return groups;
}

TEST_P(Conformance, SendAndReceiveMatchInOrder) {
  OnRanks(3, [this](Group& group) {
    const int next = (group.rank() + 1) % 3, before = (group.rank() + 2) % 3;
    std::vector<at::Tensor> received;
    std::vector<std::unique_ptr<Work>> works;
    for (int i = 0; i < 3; ++i) {
      received.push_back(Here(group, at::zeros({4}, at::kFloat)));
      works.push_back(group.Recv(received.back(), before));
    }
    for (int i = 0; i < 3; ++i) works.push_back(group.Send(Here(group, Of(group.rank(), 4, 10 * i)), next));
    for (const auto& work : works) ASSERT_TRUE(work->Wait().ok());
    for (int i = 0; i < 3; ++i) {
      ExpectClose(received[static_cast<size_t>(i)], Of(before, 4, 10 * i), "message");
    }
  });
}

TEST_P(Conformance, ARankThatNeverComesIsNamedAtTheDeadline) {
  std::atomic<int> failed = 0;
  OnRanks(
      3,
      [&](Group& group) {
        at::Tensor values = Of(group.rank(), 100);
        ASSERT_TRUE(group.AllReduce(values)->Wait().ok());
        if (group.rank() == 1) {
          // It stays away until the others have failed, so that no socket reveals it.
          EXPECT_TRUE(Eventually([&] { return failed == 2; }));
          return;
        }
        const absl::Time begin = absl::Now();
        const auto work = group.AllReduce(values);
        EXPECT_FALSE(work->done());
        const absl::Status status = work->Wait();
        EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
        EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
        EXPECT_LT(absl::Now() - begin, kTestPatience);
        EXPECT_TRUE(work->done());
        EXPECT_FALSE(group.Health().ok());
        EXPECT_FALSE(group.AllReduce(values)->Wait().ok()) << "a group that failed stays so";
        ++failed;
      },
      absl::Seconds(5));  // also of the all-reduce before, on a busy machine
}

// A message that no one sends or receives fails at its deadline, on the rank that waits for it.
TEST_P(MessageConformance, ThePeerThatNeverComesIsNamedAtTheDeadline) {
  std::atomic<bool> failed = false;
  OnTwoRanks(
      2,
      [&](int rank, const std::vector<Group*>& groups) {
        if (rank == 0) {
          ASSERT_TRUE(Eventually([&] { return failed.load(); }));
          return;
        }
        const at::Tensor sent = Of(0, 1000), received = Of(0, 1000);
        const absl::Time begin = absl::Now();
        std::vector<std::unique_ptr<Work>> works;
        works.push_back(groups[0]->Send(sent, 0));
        works.push_back(groups[1]->Recv(received, 0));
        for (const auto& work : works) EXPECT_FALSE(work->done());
        for (const size_t i : {0, 1}) {
          const absl::Status status = works[i]->Wait();
          EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
          EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(i == 0 ? "send" : "rec"), HasSubstr("rank 0")));
          EXPECT_LT(absl::Now() - begin, kTestPatience);
          EXPECT_TRUE(works[i]->done());
          EXPECT_FALSE(groups[i]->Health().ok());
          EXPECT_FALSE(groups[i]->Recv(received, 0)->Wait().ok()) << "a group that failed stays so";
        }
        failed = true;
      },
      absl::Seconds(3));  // also of the messages that connect the groups, on a busy machine
}

const std::vector<Backend>& Backends() {
  static const auto& all =
      *new std::vector<Backend>{{"threads", c10::kCPU, 4, ThreadGroups, /*tells_of_messages=*/true},
                                {"adversarial", c10::kCPU, 4, AdversarialGroups},
                                {"device", c10::kCPU, 4, DeviceGroups, /*tells_of_messages=*/true},
                                {"gloo", c10::kCPU, 4, GlooGroups},
                                {"direct", c10::kCPU, 4, DirectGroups, /*tells_of_messages=*/true}};
  return all;
}
std::string NameOf(const testing::TestParamInfo<Backend>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Backends, Conformance, ::testing::ValuesIn(Backends()), NameOf);
INSTANTIATE_TEST_SUITE_P(Backends, MessageConformance, ::testing::ValuesIn(Backends()), NameOf);

TEST(Device, RowsAndColumnsOfRanksAreGroups) {
  const Groups groups = DeviceGroups(4, absl::Seconds(20));
  ExpectRowsAndColumns(groups, [](DeviceGroup& world, int color, int rank, int size) {
    return world.Split(color, {.rank = rank, .size = size, .count = [] { return 1; }, .diagnose = [] { return ""; }});
  });
}

TEST(Device, ARankMayBeInNoPartOfASplit) {
  const Groups groups = DeviceGroups(4, absl::Seconds(20));
  ExpectAPairAndNoPartOfTheOthers(groups, [](DeviceGroup& world, int color, int rank, int size) {
    return world.Split(color, {.rank = rank, .size = size, .count = [] { return 1; }, .diagnose = [] { return ""; }});
  });
}

TEST(Threads, MessagesOfOtherTypesFail) {
  Groups groups = MakeThreads(2);
  const auto sent = groups[0]->Send(at::zeros({3}, at::kFloat), 1);
  const auto received = groups[1]->Recv(at::zeros({3}, at::kBFloat16), 0);
  EXPECT_THAT(std::string(sent->Wait().message()), HasSubstr("ranks disagree: send 3 Float @0 and recv 3 BFloat16 @0"));
  EXPECT_FALSE(received->Wait().ok());
}

TEST(Threads, RanksThatDisagreeFail) {
  Groups groups = MakeThreads(2);
  const auto first = groups[0]->AllReduce(at::zeros({3}, at::kFloat));
  const auto second = groups[1]->Broadcast(at::zeros({3}, at::kFloat), 0);
  EXPECT_THAT(std::string(first->Wait().message()), HasSubstr("ranks disagree: all-reduce 3 Float"));
  EXPECT_FALSE(second->Wait().ok());
}

TEST(Gloo, ARankThatDoesNotJoinIsNamed) {
  MemoryKeyValue rendezvous;
  std::vector<std::thread> ranks;
  for (const int rank : {0, 2}) {
    ranks.emplace_back([&, rank] {
      const auto group = MakeGloo({.rank = rank,
                                   .size = 3,
                                   .name = "world",
                                   .host = "127.0.0.1",
                                   .timeout = absl::Seconds(1),
                                   .join_timeout = absl::Seconds(1)},
                                  rendezvous);
      EXPECT_EQ(group.status().code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(std::string(group.status().message()), HasSubstr("rank 1 never came"));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// Its reader of sockets, by the name that Gloo gives to the thread, does not take a core from who sends.
TEST(Gloo, ItsReaderWaitsForItsTurn) {
  const int before = sched_getscheduler(0);
  const Groups groups = GlooGroups(2, absl::Seconds(20));
  EXPECT_EQ(sched_getscheduler(0), before);
  int readers = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name != "gloo_tcp_loop") continue;
    ++readers;
    EXPECT_EQ(sched_getscheduler(std::stoi(task.path().filename())), before == SCHED_OTHER ? SCHED_BATCH : before);
  }
  EXPECT_GE(readers, 2);
}

}  // namespace
}  // namespace muster::collectives
