// One test for every implementation of Group: what a collective leaves on every rank, for even, uneven and empty
// shares. Included once by the test of each kind of device, which names its backends.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/collectives/group.h"

namespace muster::collectives {

using Groups = std::vector<std::unique_ptr<Group>>;

struct Backend {
  const char* name;
  c10::DeviceType device;
  int most_ranks;  // that this machine can hold
  std::function<Groups(int size, absl::Duration timeout)> make;
};

class Conformance : public ::testing::TestWithParam<Backend> {
 protected:
  at::Tensor Here(const Group& group, const at::Tensor& values) const {
    const bool cpu = GetParam().device == c10::kCPU;
    return values.to(c10::Device(GetParam().device, static_cast<c10::DeviceIndex>(cpu ? -1 : group.rank())));
  }

  // Runs `body` on every rank at once.
  void OnRanks(int size, const std::function<void(Group&)>& body, absl::Duration timeout = absl::Seconds(20)) {
    Groups groups = GetParam().make(std::min(size, GetParam().most_ranks), timeout);
    std::vector<std::thread> ranks;
    for (const auto& group : groups) ranks.emplace_back([&, g = group.get()] { body(*g); });
    for (std::thread& rank : ranks) rank.join();
  }
};

// Rank r's initial values: r + 1, plus a tenth of the index.
inline at::Tensor Of(int rank, int64_t elements, int shift = 0) {
  return at::arange(elements, at::kFloat).mul_(0.1).add_(rank + 1 + shift);
}
inline at::Tensor SumOverRanks(const Group& group, int64_t elements) {
  const int n = group.size();
  return at::arange(elements, at::kFloat).mul_(0.1 * n).add_(n * (n + 1) / 2);
}
inline void ExpectClose(const at::Tensor& seen, const at::Tensor& expected, const std::string& what) {
  EXPECT_TRUE(seen.cpu().allclose(expected, 1e-5, 1e-5)) << what;
}

TEST_P(Conformance, AllReduceSumsOnEveryRank) {
  for (const int size : {1, 2, 3, 4}) {
    OnRanks(size, [this](Group& group) {
      for (const int64_t elements : {0, 1, 7, 10'000}) {
        at::Tensor values = Here(group, Of(group.rank(), elements));
        ASSERT_TRUE(group.AllReduce(values)->Wait().ok());
        ExpectClose(values, SumOverRanks(group, elements), absl::StrCat(elements, " on ", group.size()));
      }
    });
  }
}

TEST_P(Conformance, AllReduceInBf16AndDouble) {
  OnRanks(3, [this](Group& group) {
    for (const auto dtype : {at::kBFloat16, at::kDouble, at::kLong}) {
      at::Tensor values = Here(group, at::full({5}, group.rank() + 1, dtype));
      ASSERT_TRUE(group.AllReduce(values)->Wait().ok());
      EXPECT_TRUE(values.cpu().equal(at::full({5}, group.size() * (group.size() + 1) / 2, dtype)));
    }
  });
}

TEST_P(Conformance, AllGatherPutsEveryShareInItsPlace) {
  OnRanks(3, [this](Group& group) {
    for (const bool in_place : {false, true}) {
      at::Tensor all = Here(group, at::zeros({group.size() * 5}, at::kFloat));
      at::Tensor own = in_place ? all.narrow(0, group.rank() * 5, 5) : Here(group, at::empty({5}, at::kFloat));
      own.copy_(Of(group.rank(), 5));
      ASSERT_TRUE(group.AllGather(own, all)->Wait().ok());
      for (int rank = 0; rank < group.size(); ++rank) {
        ExpectClose(all.narrow(0, rank * 5, 5), Of(rank, 5), "share");
      }
    }
  });
}

TEST_P(Conformance, ReduceScatterLeavesEachItsRangeOfTheSum) {
  OnRanks(3, [this](Group& group) {
    const int64_t elements = group.size() * 4;
    at::Tensor all = Here(group, Of(group.rank(), elements));
    at::Tensor own = Here(group, at::empty({4}, at::kFloat));
    ASSERT_TRUE(group.ReduceScatter(all, own)->Wait().ok());
    ExpectClose(own, SumOverRanks(group, elements).narrow(0, group.rank() * 4, 4), "range");
  });
}

TEST_P(Conformance, BroadcastFromEveryRoot) {
  OnRanks(3, [this](Group& group) {
    for (int root = 0; root < group.size(); ++root) {
      at::Tensor values = Here(group, Of(group.rank(), 9));
      ASSERT_TRUE(group.Broadcast(values, root)->Wait().ok());
      ExpectClose(values, Of(root, 9), "broadcast");
    }
  });
}

// Shares as a ragged table cuts them: some ranks have two, one has none, one share is empty.
inline std::vector<std::pair<int64_t, int>> UnevenShares() { return {{5, 0}, {0, 1}, {17, 3}, {1, 0}, {1000, 1}}; }

TEST_P(Conformance, UnevenAndEmptySharesAreBroadcast) {
  OnRanks(4, [this](Group& group) {
    std::vector<RankShare> parts;
    for (const auto& [elements, root] : UnevenShares())
      parts.push_back({Here(group, Of(group.rank(), elements)), root % group.size()});
    ASSERT_TRUE(group.BroadcastShares(parts)->Wait().ok());
    for (const RankShare& part : parts) {
      ExpectClose(part.values, Of(part.root, part.values.numel()), "part");
    }
  });
}

TEST_P(Conformance, UnevenAndEmptySharesAreReduced) {
  OnRanks(4, [this](Group& group) {
    std::vector<RankShare> parts;
    for (const auto& [elements, root] : UnevenShares())
      parts.push_back({Here(group, Of(group.rank(), elements)), root % group.size()});
    ASSERT_TRUE(group.ReduceShares(parts)->Wait().ok());
    for (const RankShare& part : parts) {
      if (part.root == group.rank()) ExpectClose(part.values, SumOverRanks(group, part.values.numel()), "part");
    }
  });
}

inline int RootOf(int i, const Group& group) { return (i % 3 == 0 ? 1 : 0) % group.size(); }

TEST_P(Conformance, ManyUnderWayAtOnce) {
  OnRanks(2, [this](Group& group) {
    std::vector<at::Tensor> values;
    std::vector<std::unique_ptr<Work>> works;
    for (int i = 0; i < 50; ++i) {
      values.push_back(Here(group, Of(group.rank(), 100 + i)));
      works.push_back(i % 2 == 0 ? group.AllReduce(values.back())
                                 : group.ReduceShares({{values.back(), RootOf(i, group)}}));
    }
    for (const auto& work : works) ASSERT_TRUE(work->Wait().ok());
    for (size_t i = 0; i < 50; ++i) {
      if (i % 2 == 0 || group.rank() == RootOf(static_cast<int>(i), group)) {
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
    EXPECT_EQ(come, group.size());
  });
}

}  // namespace muster::collectives
