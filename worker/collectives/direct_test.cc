// Tests of DirectGroup that the conformance test does not cover.
#include "worker/collectives/direct.h"

#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "testing/wait.h"
#include "worker/collectives/gloo_groups_test.h"
#include "worker/collectives/memory_key_value.h"

namespace muster::collectives {
namespace {

using ::testing::HasSubstr;

// Runs `body` on each rank of a group, on a thread of its own.
void OnRanks(int size, bool direct, const std::function<void(std::unique_ptr<Group>)>& body,
             absl::Duration timeout = absl::Seconds(30)) {
  MemoryKeyValue values;
  std::vector<std::thread> ranks;
  std::vector<std::unique_ptr<Group>> groups = JoinGloo(size, timeout, direct, values);
  for (const auto& group : groups) ASSERT_NE(group, nullptr);
  for (std::unique_ptr<Group>& group : groups) {
    ranks.emplace_back([&body, mine = std::move(group)]() mutable { body(std::move(mine)); });
  }
  for (std::thread& rank : ranks) rank.join();
}

// Initial values by rank: numbers whose sum depends on the order.
std::vector<at::Tensor> Inputs(int size, int64_t elements, at::ScalarType dtype) {
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < size; ++rank) {
    inputs.push_back(at::rand({elements}, at::kDouble).sub_(0.5).mul_(rank % 2 == 0 ? 1 : 1e3).to(dtype));
  }
  return inputs;
}

// Shares of uneven sizes, one of them empty, that come round the ranks.
std::vector<RankShare> Cut(const at::Tensor& values, int size) {
  std::vector<RankShare> shares;
  const int64_t elements = values.numel(), cuts[] = {0, elements / 3, elements / 3, elements / 2, elements};
  for (int i = 0; i < 4; ++i) shares.push_back({values.narrow(0, cuts[i], cuts[i + 1] - cuts[i]), (i + 1) % size});
  return shares;
}

// By case: the all-reduced, then what is left of reduced shares at their roots, one after the other. `inputs`: by case,
// then by rank.
std::vector<at::Tensor> Sums(int size, bool direct, const std::vector<std::vector<at::Tensor>>& inputs) {
  std::vector<at::Tensor> sums(2 * inputs.size());
  for (size_t c = 0; c < inputs.size(); ++c) sums[2 * c + 1] = at::zeros_like(inputs[c][0]);
  OnRanks(size, direct, [&](std::unique_ptr<Group> group) {
    for (size_t c = 0; c < inputs.size(); ++c) {
      const at::Tensor& input = inputs[c][static_cast<size_t>(group->rank())];
      const at::Tensor all = input.clone(), shares = input.clone();
      const auto first = group->AllReduce(all);
      const auto second = group->ReduceShares(Cut(shares, size));
      ASSERT_TRUE(first->Wait().ok());
      ASSERT_TRUE(second->Wait().ok());
      // Gloo's received and summed shares have no done_at. A single element is not split, so it goes through Gloo.
      EXPECT_TRUE(input.numel() == 1 || second->done_at().has_value() == direct) << "wrong transport";
      if (group->rank() == 0) sums[2 * c] = all;
      const std::vector<RankShare> into = Cut(sums[2 * c + 1], size), from = Cut(shares, size);
      for (size_t i = 0; i < into.size(); ++i) {
        if (into[i].root == group->rank()) into[i].values.copy_(from[i].values);
      }
    }
  });
  return sums;
}

TEST(Direct, SumsAreThoseOfGlooBitForBit) {
  for (const int size : {2, 3, 4}) {
    std::vector<std::vector<at::Tensor>> inputs;
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      for (const int64_t elements : {1, 5, 1000, 700'001}) inputs.push_back(Inputs(size, elements, dtype));
    }
    const auto direct = Sums(size, true, inputs), gloo = Sums(size, false, inputs);
    for (size_t i = 0; i < direct.size(); ++i) {
      const at::Tensor& input = inputs[i / 2][0];
      EXPECT_TRUE(direct[i].equal(gloo[i])) << (i % 2 == 0 ? "all-reduce" : "reduce") << " of " << input.numel() << " "
                                            << input.scalar_type() << " on " << size;
    }
  }
}

TEST(Direct, MoreUnderWayThanThereAreSlots) {
  constexpr int kMany = 400;
  OnRanks(2, true, [](std::unique_ptr<Group> group) {
    std::vector<at::Tensor> values;
    std::vector<std::unique_ptr<Work>> works;
    for (int i = 0; i < kMany; ++i) {
      values.push_back(at::full({3}, group->rank() + i, at::kFloat));
      works.push_back(group->AllReduce(values.back()));
    }
    for (int i = kMany; i-- > 0;) {  // in any order
      ASSERT_TRUE(works[static_cast<size_t>(i)]->Wait().ok());
      EXPECT_EQ(values[static_cast<size_t>(i)][2].item<float>(), 2 * i + 1);
    }
  });
}

TEST(Direct, IsDoneWithoutAWaitOnceEveryRankHasFinished) {
  OnRanks(2, true, [](std::unique_ptr<Group> group) {
    const at::Tensor values = at::full({100}, group->rank() + 1.0f);
    const auto work = group->AllReduce(values);
    EXPECT_TRUE(Eventually([&] { return work->done(); }));
    EXPECT_EQ(values[99].item<float>(), 3);
    EXPECT_TRUE(work->Wait().ok());
  });
}

TEST(Direct, RanksThatDisagreeFail) {
  OnRanks(2, true, [](std::unique_ptr<Group> group) {
    const absl::Status status = group->AllReduce(at::zeros({100 + group->rank()}))->Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), testing::AnyOf(HasSubstr("ranks disagree"), HasSubstr("has aborted")));
  });
}

// Its tensors may be freed and are no longer read; the other ranks fail.
TEST(Direct, AWorkThatIsDroppedEndsTheGroup) {
  absl::Notification dropped, over;
  OnRanks(2, true, [&](std::unique_ptr<Group> group) {
    const at::Tensor values = at::full({1000}, 1.0f);
    if (group->rank() == 1) {
      group->AllReduce(values).reset();
      EXPECT_FALSE(group->Health().ok());
      dropped.Notify();
      over.WaitForNotification();  // while its group is alive
      return;
    }
    dropped.WaitForNotification();
    const absl::Status status = group->AllReduce(values)->Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 has aborted"));
    EXPECT_FALSE(group->Health().ok());
    EXPECT_FALSE(group->AllReduce(values)->Wait().ok());
    over.Notify();
  });
}

TEST(Direct, AGroupMayEndBeforeItsWork) {
  absl::Notification ended;
  OnRanks(2, true, [&](std::unique_ptr<Group> group) {
    const at::Tensor values = at::full({1000}, 1.0f);
    if (group->rank() == 1) {
      const std::unique_ptr<Work> outlives = group->AllReduce(values);
      group.reset();
      ended.Notify();
      EXPECT_THAT(std::string(outlives->Wait().message()), HasSubstr("the group has ended"));
      return;
    }
    ended.WaitForNotification();
    EXPECT_THAT(std::string(group->AllReduce(values)->Wait().message()), HasSubstr("rank 1 has aborted"));
  });
}

// A root must not get its tensors back before every rank has read them.
TEST(Direct, WaitReturnsOnlyWhenTheOthersHaveRead) {
  absl::Notification over;
  OnRanks(
      2, true,
      [&](std::unique_ptr<Group> group) {
        if (group->rank() == 1) return over.WaitForNotification();
        const absl::Status status = group->Broadcast(at::full({10}, 1.0f), 0)->Wait();
        over.Notify();
        EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
        EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 lags"));
      },
      absl::Seconds(1));
}

TEST(Direct, MessagesAreReadFromTheSendersMemory) {
  OnRanks(2, true, [](std::unique_ptr<Group> group) {
    const at::Tensor values = at::full({1000}, group->rank() + 1.0f);
    const auto work = group->rank() == 0 ? group->Send(values, 1) : group->Recv(values, 0);
    ASSERT_TRUE(work->Wait().ok());
    EXPECT_EQ(values[999].item<float>(), 1);
    EXPECT_TRUE(work->done_at().has_value()) << "by Gloo";
  });
}

TEST(Direct, MessagesOfOtherSizesOrTypesFail) {
  for (const bool type : {false, true}) {
    OnRanks(2, true, [&](std::unique_ptr<Group> group) {
      if (group->rank() == 0) {
        const absl::Status status = group->Send(at::zeros({8}, at::kFloat), 1)->Wait();
        EXPECT_THAT(std::string(status.message()), HasSubstr("send 1 failed: "));
        EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 has aborted"));
        return;
      }
      const at::Tensor other = type ? at::zeros({8}, at::kInt) : at::zeros({9}, at::kFloat);
      const auto work = group->Recv(other, 0);
      EXPECT_THAT(std::string(work->Wait().message()), HasSubstr("ranks disagree: message 1 of rank 0 has 32 bytes"));
      EXPECT_FALSE(group->Health().ok());
    });
  }
}

// The receiver does not accept what the sender may have overwritten since.
TEST(Direct, ASendThatIsDroppedEndsTheGroup) {
  absl::Notification dropped, over;
  OnRanks(2, true, [&](std::unique_ptr<Group> group) {
    const at::Tensor values = at::full({1000}, 1.0f);
    if (group->rank() == 0) {
      group->Send(values, 1).reset();
      EXPECT_FALSE(group->Health().ok());
      dropped.Notify();
      return over.WaitForNotification();
    }
    dropped.WaitForNotification();
    EXPECT_THAT(std::string(group->Recv(values, 0)->Wait().message()), HasSubstr("rank 0 has aborted"));
    over.Notify();
  });
}

}  // namespace
}  // namespace muster::collectives
