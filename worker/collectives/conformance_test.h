// One test for every implementation of Group: what a collective leaves on every rank, for even, uneven and empty
// shares. Included once by the test of each kind of device, which names its backends.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
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
#include "testing/wait.h"
#include "worker/collectives/device_group.h"
#include "worker/collectives/group.h"

namespace muster::collectives {

using Groups = std::vector<std::unique_ptr<Group>>;

struct Backend {
  const char* name;
  c10::DeviceType device;
  int most_ranks;  // that this machine can hold
  std::function<Groups(int size, absl::Duration timeout)> make;
  bool tells_of_messages = false;  // Work::done of a message becomes true without a Wait
};

class Conformance : public ::testing::TestWithParam<Backend> {
 protected:
  at::Tensor Here(const Group& group, const at::Tensor& values) const {
    const bool cpu = GetParam().device == c10::kCPU;
    return values.to(c10::Device(GetParam().device, static_cast<c10::DeviceIndex>(cpu ? -1 : group.rank())));
  }

  // Runs `body` on every rank at once.
  void OnRanks(int size, const std::function<void(Group&)>& body, absl::Duration timeout = absl::Seconds(20)) {
    ASSERT_GE(GetParam().most_ranks, 1) << "there is no such device: the test would pass without having run";
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

// One rank's `elements`, different on every rank. Between CPUs their sum depends on the order of the ranks; NCCL
// chooses an order of its own, so on GPUs they are small integers, whose sum is the same in every order.
inline at::Tensor Mixed(int rank, int64_t elements, at::ScalarType dtype, bool any_order) {
  const at::Tensor index = at::arange(elements, at::kDouble);
  if (any_order) return index.remainder(7).add(rank).to(dtype);
  return index.mul(0.37).add(rank).sin().mul(rank % 2 == 0 ? 1 : 1e3).to(dtype);
}

// Wholes for `size` ranks: of several sizes, two of them empty.
struct Wholes {
  Wholes(const Group& group, at::ScalarType dtype, c10::DeviceType device) {
    for (const int64_t each : {5, 0, 1, 1000, 0, 30'011}) {
      const bool cpu = device == c10::kCPU;
      const c10::Device here(device, static_cast<c10::DeviceIndex>(cpu ? -1 : group.rank()));
      tensors.push_back(Mixed(group.rank(), each * group.size(), dtype, !cpu).to(here));
      copies.push_back(tensors.back().clone());
      for (int root = 0; root < group.size(); ++root) {
        shares.push_back({copies.back().narrow(0, root * each, each), root});
      }
    }
  }
  std::vector<at::Tensor> tensors, copies;
  std::vector<RankShare> shares;  // the ranges of `copies`
};

TEST_P(Conformance, AllGatherOfManyIsTheBroadcastOfTheirShares) {
  for (const int size : {1, 2, 3, 4}) {
    OnRanks(size, [this](Group& group) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        Wholes wholes(group, dtype, GetParam().device);
        const auto gather = group.AllGather(wholes.tensors);
        ASSERT_TRUE(gather->Wait().ok());
        ASSERT_TRUE(group.BroadcastShares(wholes.shares)->Wait().ok());
        for (size_t i = 0; i < wholes.tensors.size(); ++i) {
          const at::Tensor whole = wholes.tensors[i].cpu();
          EXPECT_TRUE(whole.equal(wholes.copies[i].cpu())) << i << " on " << group.size();
          for (int rank = 0; rank < group.size(); ++rank) {
            const int64_t each = whole.numel() / group.size();
            const at::Tensor theirs = Mixed(rank, whole.numel(), dtype, GetParam().device != c10::kCPU);
            EXPECT_TRUE(whole.narrow(0, rank * each, each).equal(theirs.narrow(0, rank * each, each)))
                << "range " << rank << " of " << i << " on " << group.size();
          }
        }
      }
    });
  }
}

TEST_P(Conformance, ReduceScatterOfManyIsTheReductionOfTheirSharesBitForBit) {
  for (const int size : {1, 2, 3, 4}) {
    OnRanks(size, [this](Group& group) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        const bool any_order = GetParam().device != c10::kCPU;
        Wholes wholes(group, dtype, GetParam().device);
        const auto reduce = group.ReduceScatter(wholes.tensors);
        ASSERT_TRUE(reduce->Wait().ok());
        ASSERT_TRUE(group.ReduceShares(wholes.shares)->Wait().ok());
        for (size_t i = 0; i < wholes.tensors.size(); ++i) {
          const int64_t each = wholes.tensors[i].numel() / group.size(), begin = group.rank() * each;
          const at::Tensor own = wholes.tensors[i].cpu().narrow(0, begin, each);
          EXPECT_TRUE(own.equal(wholes.copies[i].cpu().narrow(0, begin, each))) << i << " on " << group.size();
          at::Tensor sum = Mixed(0, each * group.size(), dtype, any_order);
          for (int rank = 1; rank < group.size(); ++rank) sum += Mixed(rank, sum.numel(), dtype, any_order);
          EXPECT_TRUE(own.equal(sum.narrow(0, begin, each))) << i << " on " << group.size() << " in rank order";
        }
      }
    });
  }
}

TEST_P(Conformance, AWholeThatTheRanksCannotShareEvenlyIsRefusedAndTheGroupLivesOn) {
  OnRanks(2, [this](Group& group) {
    if (group.size() == 1) return;
    const at::Tensor odd = Here(group, at::zeros({2 * group.size() + 1}, at::kFloat));
    EXPECT_EQ(group.AllGather({odd})->Wait().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(group.ReduceScatter({odd})->Wait().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(group.Health().ok());
    EXPECT_TRUE(group.AllReduce(odd)->Wait().ok());
  });
}

TEST_P(Conformance, HealthIsGoodAndWorksAreDoneAfterTheirWaits) {
  OnRanks(3, [this](Group& group) {
    EXPECT_TRUE(group.Health().ok());
    for (const int64_t each : {0, 100}) {
      const at::Tensor values = Here(group, Of(group.rank(), each * group.size()));
      std::vector<std::unique_ptr<Work>> works;
      const auto finish = [&](std::unique_ptr<Work> work) {
        ASSERT_TRUE(work->Wait().ok());
        works.push_back(std::move(work));
      };
      finish(group.AllReduce(values));
      finish(group.Broadcast(values, 0));
      finish(group.ReduceShares({{values, 0}}));
      finish(group.AllGather({values}));
      finish(group.ReduceScatter({values}));
      (void)values.cpu();  // on a GPU, Wait does not block, but the read-back does
      for (size_t i = 0; i < works.size(); ++i) EXPECT_TRUE(works[i]->done()) << i << " of " << each;
      EXPECT_TRUE(group.Health().ok());
    }
  });
}

TEST_P(Conformance, NothingIsDoneThatARankHasNotIssued) {
  for (const bool shares : {false, true}) {
    std::atomic<bool> asked = false;
    OnRanks(3, [&](Group& group) {
      const at::Tensor values = Here(group, Of(group.rank(), 300));
      const auto issue = [&] { return shares ? group.ReduceScatter({values}) : group.AllReduce(values); };
      // NCCL connects ranks when an algorithm is used first, and then holds the first rank until the others come.
      ASSERT_TRUE(issue()->Wait().ok());
      ASSERT_TRUE(group.Barrier().ok());
      if (group.rank() != 0) {
        ASSERT_TRUE(Eventually([&] { return asked.load(); }));
      }
      const auto work = issue();
      if (group.rank() == 0) {
        EXPECT_TRUE(group.size() == 1 || !work->done());
        asked = true;
      }
      EXPECT_TRUE(work->Wait().ok());
    });
  }
}

// Element i of what rank r sends to rank s is 100 r + 10 s + i.
TEST_P(Conformance, AllToAllBringsEachRankItsPartOfAll) {
  for (const int size : {1, 2, 4}) {
    OnRanks(size, [this](Group& group) {
      const int n = group.size();
      for (const int64_t each : {0, 1, 9, 5000}) {
        const auto part = [&](int from, int to) { return at::arange(each, at::kFloat).add_(100 * from + 10 * to); };
        const at::Tensor send = at::zeros({n * each}, at::kFloat), expected = at::zeros({n * each}, at::kFloat);
        for (int r = 0; r < n; ++r) {
          send.narrow(0, r * each, each).copy_(part(group.rank(), r));
          expected.narrow(0, r * each, each).copy_(part(r, group.rank()));
        }
        const at::Tensor receive = Here(group, at::full({n * each}, -1, at::kFloat)), sent = Here(group, send);
        ASSERT_TRUE(group.AllToAll(sent, receive)->Wait().ok());
        EXPECT_TRUE(receive.cpu().equal(expected)) << each << " on " << n;
        EXPECT_TRUE(sent.cpu().equal(send)) << "it is only read";
      }
      const at::Tensor three = Here(group, at::zeros({3}, at::kFloat)), two = Here(group, at::zeros({2}, at::kFloat));
      EXPECT_EQ(group.AllToAll(three, two)->Wait().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(group.AllToAll(three, three)->Wait().ok(), n == 1 || n == 3) << "three parts for " << n;
      at::Tensor after = Here(group, Of(group.rank(), 10));
      ASSERT_TRUE(group.AllReduce(after)->Wait().ok()) << "the group lives on";
    });
  }
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

// Ranks in rows of two; each row and each column is a group, made by `split`(world, color, rank, size) on every rank at
// once, and sums what its ranks hold. An odd number of ranks is one column. `world`: DeviceGroups.
template <typename F>
void ExpectRowsAndColumns(const Groups& world, const F& split) {
  const int size = static_cast<int>(world.size()), width = size % 2 == 0 ? 2 : 1;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      auto& whole = dynamic_cast<DeviceGroup&>(*world[static_cast<size_t>(rank)]);
      const int row = rank / width, column = rank % width;
      const auto across = split(whole, row, column, width), down = split(whole, column, row, size / width);
      ASSERT_TRUE(across.ok() && down.ok()) << across.status() << down.status();
      const c10::Device device = whole.device();
      const at::Tensor a = at::full({3}, rank, at::TensorOptions(at::kFloat).device(device)), b = a.clone();
      ASSERT_TRUE((*across)->AllReduce(a)->Wait().ok());
      ASSERT_TRUE((*down)->AllReduce(b)->Wait().ok());
      int sum_across = 0, sum_down = 0;
      for (int other = 0; other < size; ++other) {
        if (other / width == row) sum_across += other;
        if (other % width == column) sum_down += other;
      }
      EXPECT_EQ(a[0].item<float>(), static_cast<float>(sum_across)) << "rank " << rank;
      EXPECT_EQ(b[2].item<float>(), static_cast<float>(sum_down)) << "rank " << rank;
      EXPECT_EQ((*across)->rank(), column);
      EXPECT_EQ((*down)->size(), size / width);
      EXPECT_TRUE(whole.Barrier().ok()) << "the whole lives on";
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// The first and the last rank are a group, made by `split`(world, color, rank, size) on every rank at once; the others
// are in none.
template <typename F>
void ExpectAPairAndNoPartOfTheOthers(const Groups& world, const F& split) {
  const int size = static_cast<int>(world.size());
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      auto& whole = dynamic_cast<DeviceGroup&>(*world[static_cast<size_t>(rank)]);
      const bool last = rank == size - 1, in = rank == 0 || last;
      const auto pair = split(whole, in ? 0 : kNoColor, last ? 1 : 0, 2);
      ASSERT_TRUE(pair.ok()) << pair.status();
      ASSERT_EQ(*pair != nullptr, in) << "rank " << rank;
      if (in) {
        const at::Tensor sum = at::full({1}, rank + 1, at::TensorOptions(at::kFloat).device(whole.device()));
        ASSERT_TRUE((*pair)->AllReduce(sum)->Wait().ok());
        EXPECT_EQ(sum[0].item<float>(), static_cast<float>(size + 1));
      }
      EXPECT_TRUE(whole.Barrier().ok()) << "the whole lives on";
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace muster::collectives
