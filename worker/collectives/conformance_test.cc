// One test for every implementation of Group: what a collective leaves on every rank, for even, uneven and empty
// shares.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/collectives/gloo.h"
#include "worker/collectives/memory_key_value.h"
#include "worker/collectives/threads.h"

namespace muster::collectives {
namespace {

using ::testing::HasSubstr;
using Groups = std::vector<std::unique_ptr<Group>>;

struct Backend {
  const char* name;
  std::function<Groups(int size, absl::Duration timeout)> make;
};

Groups GlooGroups(int size, absl::Duration timeout) {
  // Kept for the groups' life; each is small.
  static std::vector<std::unique_ptr<MemoryKeyValue>> rendezvous;
  MemoryKeyValue& values = *rendezvous.emplace_back(std::make_unique<MemoryKeyValue>());
  Groups groups(static_cast<size_t>(size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      auto group = MakeGloo({.rank = rank,
                             .size = size,
                             .name = "world",
                             .host = "127.0.0.1",
                             .timeout = timeout,
                             .join_timeout = absl::Seconds(20)},
                            values);
      EXPECT_TRUE(group.ok()) << group.status();
      groups[static_cast<size_t>(rank)] = *std::move(group);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return groups;
}

Groups ThreadGroups(int size, absl::Duration timeout) { return MakeThreads(size, timeout); }

class Conformance : public ::testing::TestWithParam<Backend> {
 protected:
  // Runs `body` on every rank at once.
  void OnRanks(int size, const std::function<void(Group&)>& body, absl::Duration timeout = absl::Seconds(20)) {
    Groups groups = GetParam().make(size, timeout);
    std::vector<std::thread> ranks;
    for (const auto& group : groups) ranks.emplace_back([&, g = group.get()] { body(*g); });
    for (std::thread& rank : ranks) rank.join();
  }
};

// What rank r holds at first: r + 1, plus a tenth of the index.
at::Tensor Own(const Group& group, int64_t elements, int shift = 0) {
  return at::arange(elements, at::kFloat).mul_(0.1).add_(group.rank() + 1 + shift);
}
at::Tensor SumOverRanks(const Group& group, int64_t elements) {
  const int n = group.size();
  return at::arange(elements, at::kFloat).mul_(0.1 * n).add_(n * (n + 1) / 2);
}
void ExpectClose(const at::Tensor& seen, const at::Tensor& wanted, const std::string& what) {
  EXPECT_TRUE(seen.allclose(wanted, 1e-5, 1e-5)) << what;
}

TEST_P(Conformance, AllReduceSumsOnEveryRank) {
  for (const int size : {1, 2, 3, 4}) {
    OnRanks(size, [](Group& group) {
      for (const int64_t elements : {0, 1, 7, 10'000}) {
        at::Tensor values = Own(group, elements);
        ASSERT_TRUE(group.AllReduce(values)->Wait().ok());
        ExpectClose(values, SumOverRanks(group, elements), absl::StrCat(elements, " on ", group.size()));
      }
    });
  }
}

TEST_P(Conformance, AllReduceInBf16AndDouble) {
  OnRanks(3, [](Group& group) {
    for (const auto dtype : {at::kBFloat16, at::kDouble, at::kLong}) {
      at::Tensor values = at::full({5}, group.rank() + 1, dtype);
      ASSERT_TRUE(group.AllReduce(values)->Wait().ok());
      EXPECT_TRUE(values.equal(at::full({5}, 6, dtype)));
    }
  });
}

TEST_P(Conformance, AllGatherPutsEveryShareInItsPlace) {
  OnRanks(3, [](Group& group) {
    for (const bool in_place : {false, true}) {
      at::Tensor all = at::zeros({3 * 5}, at::kFloat);
      at::Tensor own = in_place ? all.narrow(0, group.rank() * 5, 5) : at::empty({5}, at::kFloat);
      own.copy_(Own(group, 5));
      ASSERT_TRUE(group.AllGather(own, all)->Wait().ok());
      for (int rank = 0; rank < 3; ++rank) {
        ExpectClose(all.narrow(0, rank * 5, 5), at::arange(5, at::kFloat).mul_(0.1).add_(rank + 1), "share");
      }
    }
  });
}

TEST_P(Conformance, ReduceScatterLeavesEachItsRangeOfTheSum) {
  OnRanks(3, [](Group& group) {
    at::Tensor all = Own(group, 3 * 4);
    at::Tensor own = at::empty({4}, at::kFloat);
    ASSERT_TRUE(group.ReduceScatter(all, own)->Wait().ok());
    ExpectClose(own, SumOverRanks(group, 12).narrow(0, group.rank() * 4, 4), "range");
  });
}

TEST_P(Conformance, BroadcastFromEveryRoot) {
  OnRanks(3, [](Group& group) {
    for (int root = 0; root < 3; ++root) {
      at::Tensor values = Own(group, 9);
      ASSERT_TRUE(group.Broadcast(values, root)->Wait().ok());
      ExpectClose(values, at::arange(9, at::kFloat).mul_(0.1).add_(root + 1), "broadcast");
    }
  });
}

// Shares as a ragged table cuts them: some ranks have two, one has none, one share is empty.
std::vector<std::pair<int64_t, int>> UnevenShares() { return {{5, 0}, {0, 1}, {17, 3}, {1, 0}, {1000, 1}}; }

TEST_P(Conformance, UnevenAndEmptySharesAreBroadcast) {
  OnRanks(4, [](Group& group) {
    std::vector<Part> parts;
    for (const auto& [elements, root] : UnevenShares()) parts.push_back({Own(group, elements), root});
    ASSERT_TRUE(group.BroadcastParts(parts)->Wait().ok());
    for (const Part& part : parts) {
      ExpectClose(part.values, at::arange(part.values.numel(), at::kFloat).mul_(0.1).add_(part.root + 1), "part");
    }
  });
}

TEST_P(Conformance, UnevenAndEmptySharesAreReduced) {
  OnRanks(4, [](Group& group) {
    std::vector<Part> parts;
    for (const auto& [elements, root] : UnevenShares()) parts.push_back({Own(group, elements), root});
    ASSERT_TRUE(group.ReduceParts(parts)->Wait().ok());
    for (const Part& part : parts) {
      if (part.root == group.rank()) ExpectClose(part.values, SumOverRanks(group, part.values.numel()), "part");
    }
  });
}

TEST_P(Conformance, SendAndReceiveMatchInOrder) {
  OnRanks(3, [](Group& group) {
    const int next = (group.rank() + 1) % 3, before = (group.rank() + 2) % 3;
    std::vector<at::Tensor> received;
    std::vector<std::unique_ptr<Work>> works;
    for (int i = 0; i < 3; ++i) {
      received.push_back(at::zeros({4}, at::kFloat));
      works.push_back(group.Recv(received.back(), before));
    }
    for (int i = 0; i < 3; ++i) works.push_back(group.Send(Own(group, 4, 10 * i), next));
    for (const auto& work : works) ASSERT_TRUE(work->Wait().ok());
    for (int i = 0; i < 3; ++i) {
      ExpectClose(received[static_cast<size_t>(i)], at::arange(4, at::kFloat).mul_(0.1).add_(before + 1 + 10 * i),
                  "message");
    }
  });
}

TEST_P(Conformance, ManyUnderWayAtOnce) {
  OnRanks(2, [](Group& group) {
    std::vector<at::Tensor> values;
    std::vector<std::unique_ptr<Work>> works;
    for (int i = 0; i < 50; ++i) {
      values.push_back(Own(group, 100 + i));
      works.push_back(i % 2 == 0 ? group.AllReduce(values.back()) : group.ReduceParts({{values.back(), i % 3 == 0}}));
    }
    for (const auto& work : works) ASSERT_TRUE(work->Wait().ok());
    for (size_t i = 0; i < 50; ++i) {
      if (i % 2 == 0 || group.rank() == (i % 3 == 0)) {
        ExpectClose(values[i], SumOverRanks(group, values[i].numel()), absl::StrCat(i));
      }
    }
  });
}

TEST_P(Conformance, BarrierWaitsForTheLast) {
  std::atomic<int> come = 0;
  OnRanks(4, [&](Group& group) {
    ++come;
    ASSERT_TRUE(group.Barrier().ok());
    EXPECT_EQ(come, 4);
  });
}

TEST_P(Conformance, ARankThatNeverComesIsNamedAtTheDeadline) {
  OnRanks(
      3,
      [](Group& group) {
        at::Tensor values = Own(group, 100);
        ASSERT_TRUE(group.AllReduce(values)->Wait().ok());
        if (group.rank() == 1) {
          // It stays away until the others gave up, so that its sockets do not tell.
          absl::SleepFor(absl::Seconds(3));
          return;
        }
        const absl::Time begin = absl::Now();
        const absl::Status status = group.AllReduce(values)->Wait();
        EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
        EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
        EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
        EXPECT_FALSE(group.AllReduce(values)->Wait().ok()) << "a group that failed stays so";
      },
      absl::Seconds(1));
}

INSTANTIATE_TEST_SUITE_P(Backends, Conformance,
                         ::testing::Values(Backend{"threads", ThreadGroups}, Backend{"gloo", GlooGroups}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Threads, RanksThatDisagreeAreTold) {
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

}  // namespace
}  // namespace muster::collectives
