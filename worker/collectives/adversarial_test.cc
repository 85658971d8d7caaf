// How the adversarial group turns mistakes with tensors in flight into NaN or errors. Its results are in
// conformance_test.cc.
#include "worker/collectives/adversarial.h"

#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "testing/wait.h"

namespace muster::collectives {
namespace {

using ::testing::HasSubstr;

// Runs `body` on each rank of a group at once.
void OnAdversarialRanks(int size, const std::function<void(Group&)>& body, absl::Duration timeout = kTestPatience) {
  const auto groups = MakeAdversarial(size, timeout);
  std::vector<std::thread> ranks;
  for (const auto& group : groups) ranks.emplace_back([&] { body(*group); });
  for (std::thread& rank : ranks) rank.join();
}

at::Tensor Ones(int64_t elements, at::ScalarType dtype = at::kFloat) { return at::full({elements}, 1, dtype); }
bool AllNaN(const at::Tensor& values) { return at::isnan(values).all().item<bool>(); }
bool NoneNaN(const at::Tensor& values) { return !at::isnan(values).any().item<bool>(); }

TEST(Adversarial, WhatIsReadBeforeItsWaitIsNaN) {
  OnAdversarialRanks(2, [](Group& group) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      const at::Tensor reduced = Ones(3, dtype), gathered = Ones(4, dtype), scattered = Ones(4, dtype);
      const at::Tensor own = gathered.narrow(0, 2 * group.rank(), 2),
                       other = gathered.narrow(0, 2 - 2 * group.rank(), 2);
      const auto all_reduce = group.AllReduce(reduced);
      const auto all_gather = group.AllGather({gathered});
      const auto reduce_scatter = group.ReduceScatter({scattered});
      EXPECT_TRUE(AllNaN(reduced));
      EXPECT_TRUE(AllNaN(other) && NoneNaN(own)) << "the own range is only read";
      EXPECT_TRUE(AllNaN(scattered));
      EXPECT_TRUE(all_reduce->Wait().ok() && all_gather->Wait().ok() && reduce_scatter->Wait().ok());
      EXPECT_TRUE(reduced.eq(2).all().item<bool>());
      EXPECT_TRUE(gathered.eq(1).all().item<bool>());
      EXPECT_TRUE(scattered.narrow(0, 2 * group.rank(), 2).eq(2).all().item<bool>());
      EXPECT_TRUE(AllNaN(scattered.narrow(0, 2 - 2 * group.rank(), 2))) << "a reduction overwrites the other shares";
    }
  });
}

TEST(Adversarial, ResultsComeOnlyWhenEveryRankWaits) {
  std::barrier<> step(2);
  std::atomic<bool> waiting = false;
  OnAdversarialRanks(2, [&](Group& group) {
    const at::Tensor values = Ones(3);
    const auto work = group.AllReduce(values);
    step.arrive_and_wait();  // both have issued it
    EXPECT_FALSE(work->done());
    if (group.rank() == 0) {
      waiting = true;
    } else {
      EXPECT_TRUE(Eventually([&] { return waiting.load(); }));
      EXPECT_FALSE(work->done());
      EXPECT_TRUE(AllNaN(values));
    }
    EXPECT_TRUE(work->Wait().ok());
    EXPECT_TRUE(work->done());
    EXPECT_TRUE(values.eq(2).all().item<bool>());
  });
}

// Runs a collective on two ranks, of which rank 1 changes its tensor with `reuse` before its wait; the error that both
// get.
std::string ErrorOfReuse(at::ScalarType dtype, const std::function<std::unique_ptr<Work>(Group&, at::Tensor)>& issue,
                         const std::function<void(const at::Tensor&)>& reuse) {
  std::string errors[2];
  OnAdversarialRanks(2, [&](Group& group) {
    const at::Tensor values = Ones(4, dtype);
    const auto work = issue(group, values);
    const at::Tensor before = values.clone();
    if (group.rank() == 1) reuse(values);
    errors[group.rank()] = std::string(work->Wait().message());
    EXPECT_EQ(group.Health().message(), errors[group.rank()]);
    if (group.rank() == 0 && dtype == at::kLong) {
      EXPECT_TRUE(values.equal(before)) << "a result was written";
    }
  });
  EXPECT_EQ(errors[0], errors[1]);
  return errors[0];
}

std::unique_ptr<Work> IssueAllReduce(Group& group, at::Tensor values) { return group.AllReduce(std::move(values)); }

TEST(Adversarial, AResultThatIsOverwrittenBeforeItsWaitIsAnError) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong}) {
    EXPECT_THAT(ErrorOfReuse(dtype, IssueAllReduce, [](const at::Tensor& values) { values[2].fill_(7); }),
                HasSubstr("written while in flight: rank 1 changed tensor 0 of all-reduce 4"))
        << dtype;
  }
}

TEST(Adversarial, ArithmeticOnAResultBeforeItsWaitIsAnError) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong}) {
    EXPECT_THAT(ErrorOfReuse(dtype, IssueAllReduce, [](const at::Tensor& values) { values.add_(1); }),
                HasSubstr("written while in flight"))
        << dtype;
  }
}

TEST(Adversarial, ASourceThatIsOverwrittenBeforeItsWaitIsAnError) {
  const auto fill = [](const at::Tensor& values) { values.fill_(7); };
  const auto broadcast = [](Group& group, at::Tensor values) { return group.Broadcast(std::move(values), 1); };
  EXPECT_THAT(ErrorOfReuse(at::kFloat, broadcast, fill), HasSubstr("rank 1 changed tensor 0 of broadcast 4"));
}

// The receiver, which may be far ahead, already has the message.
TEST(Adversarial, AMessageThatIsOverwrittenBeforeItsWaitIsAnError) {
  const auto groups = MakeAdversarial(2, kTestPatience);
  const at::Tensor out = Ones(4), in = Ones(4);
  const auto send = groups[0]->Send(out, 1), receive = groups[1]->Recv(in, 0);
  out.fill_(7);
  EXPECT_TRUE(receive->Wait().ok());
  EXPECT_TRUE(in.eq(1).all().item<bool>());
  EXPECT_FALSE(send->done());
  EXPECT_THAT(std::string(send->Wait().message()),
              HasSubstr("written while in flight: rank 0 changed tensor 0 of send 4"));
  EXPECT_FALSE(groups[1]->Health().ok());
}

TEST(Adversarial, AReceiveIsWrittenAtItsWait) {
  const auto groups = MakeAdversarial(2, kTestPatience);
  const at::Tensor out = Ones(4), in = Ones(4);
  const auto receive = groups[1]->Recv(in, 0), send = groups[0]->Send(out, 1);
  EXPECT_TRUE(send->Wait().ok());
  EXPECT_TRUE(AllNaN(in));
  EXPECT_FALSE(receive->done());
  EXPECT_TRUE(receive->Wait().ok());
  EXPECT_TRUE(receive->done());
  EXPECT_TRUE(in.eq(1).all().item<bool>());
  const auto again = groups[1]->Recv(in, 0), more = groups[0]->Send(out, 1);
  in.fill_(7);
  EXPECT_THAT(std::string(again->Wait().message()), HasSubstr("rank 1 changed tensor 0 of recv 4"));
}

// Whose sender waits for it only when the receiver has gone on.
TEST(Adversarial, AReceiverThatWaitsFirstIsWokenByTheSend) {
  const auto groups = MakeAdversarial(2, kTestPatience);
  std::atomic<bool> received = false;
  std::thread receiver([&] {
    const auto receive = groups[1]->Recv(Ones(4), 0);
    EXPECT_TRUE(receive->Wait().ok());
    received = true;
  });
  absl::SleepFor(absl::Milliseconds(50));  // so that it waits before the send is issued
  const auto send = groups[0]->Send(Ones(4), 1);
  EXPECT_TRUE(Eventually([&] { return received.load(); }, absl::Seconds(5)));
  EXPECT_TRUE(send->Wait().ok());
  receiver.join();
}

TEST(Adversarial, AWorkThatIsDroppedBeforeItsWaitIsAnError) {
  const auto groups = MakeAdversarial(2, kTestPatience);
  const auto receive = groups[1]->Recv(Ones(4), 0);
  groups[0]->Send(Ones(4), 1).reset();
  EXPECT_THAT(std::string(receive->Wait().message()), HasSubstr("rank 0 dropped send 4 Float @0 before"));
}

TEST(Adversarial, ARankThatDoesNotWaitIsNamed) {
  std::atomic<bool> over = false;
  OnAdversarialRanks(
      3,
      [&](Group& group) {
        const auto work = group.AllReduce(Ones(3));
        if (group.rank() == 1) {
          EXPECT_TRUE(Eventually([&] { return over.load(); }));
          return;
        }
        EXPECT_THAT(std::string(work->Wait().message()), HasSubstr("rank 1 did not wait for it within 1s"));
        over = true;
      },
      absl::Seconds(1));
}

TEST(Adversarial, ARingMayWaitForItsMessagesInAnyOrder) {
  for (const bool sends_first : {false, true}) {
    OnAdversarialRanks(3, [&](Group& group) {
      const at::Tensor out = at::full({2}, group.rank(), at::kFloat), in = Ones(2);
      const auto send = group.Send(out, (group.rank() + 1) % 3);
      const auto receive = group.Recv(in, (group.rank() + 2) % 3);
      EXPECT_TRUE(AllNaN(in));
      EXPECT_TRUE((sends_first ? send : receive)->Wait().ok());
      EXPECT_TRUE((sends_first ? receive : send)->Wait().ok());
      EXPECT_TRUE(in.eq((group.rank() + 2) % 3).all().item<bool>());
    });
  }
}

}  // namespace
}  // namespace muster::collectives
