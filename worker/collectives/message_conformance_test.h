// The part of the conformance test that is about messages, as pipelines send them: groups of two ranks, one for each
// edge and direction, with many messages in flight in all of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/collectives/conformance_test.h"

namespace muster::collectives {

class MessageConformance : public Conformance {
 protected:
  using Body = std::function<void(int rank, const std::vector<Group*>& groups)>;

  // Runs `body` on two ranks at once, which have `count` groups between them, connected in both directions.
  void OnTwoRanks(size_t count, const Body& body, absl::Duration timeout = absl::Seconds(60)) {
    ASSERT_GE(GetParam().most_ranks, 1) << "there is no such device: the test would pass without having run";
    if (GetParam().most_ranks < 2) return;  // a device has no other to send to
    std::vector<Groups> groups;
    for (size_t g = 0; g < count; ++g) groups.push_back(GetParam().make(2, timeout));
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        std::vector<Group*> mine;
        for (const Groups& group : groups) mine.push_back(group[static_cast<size_t>(rank)].get());
        const c10::Device device = Here(*mine[0], at::zeros({1}, at::kFloat)).device();
        for (Group* group : mine) {
          ASSERT_TRUE(Connect(*group, 0, 1, device).ok());
          ASSERT_TRUE(Connect(*group, 1, 0, device).ok());
        }
        body(rank, mine);
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }

  at::Tensor Message(const Group& group, int number, int64_t elements) const {
    return Here(group, Of(number, elements));
  }
  at::Tensor Slot(const Group& group, int64_t elements) const { return Here(group, at::zeros({elements}, at::kFloat)); }
  void ExpectMessage(const at::Tensor& seen, int number, const std::string& what) const {
    EXPECT_TRUE(seen.cpu().equal(Of(number, seen.numel()))) << what << ", message " << number;
  }
};

// In elements: nothing, one, several, and more than sockets and NCCL's channels buffer.
inline const std::vector<int64_t>& MessageSizes() {
  static const auto& sizes = *new std::vector<int64_t>{1, 0, 1000, 1 << 18, 0, 7, 3 << 20, 3};
  return sizes;
}

// A buffer is the sender's again after its wait, whatever the receiver does with the message then.
TEST_P(MessageConformance, ManySendsAreIssuedBeforeTheFirstReceive) {
  std::atomic<bool> issued = false, reused = false;
  OnTwoRanks(1, [&](int rank, const std::vector<Group*>& groups) {
    Group& group = *groups[0];
    std::vector<at::Tensor> tensors;
    std::vector<std::unique_ptr<Work>> works;
    if (rank == 1) {
      ASSERT_TRUE(Eventually([&] { return issued.load(); })) << "a send waited for its receive";
    }
    for (size_t i = 0; i < MessageSizes().size(); ++i) {
      const int64_t elements = MessageSizes()[i];
      tensors.push_back(rank == 0 ? Message(group, static_cast<int>(i), elements) : Slot(group, elements));
      works.push_back(rank == 0 ? group.Send(tensors[i], 1) : group.Recv(tensors[i], 0));
      if (rank == 0 && elements > 0 && GetParam().device == c10::kCPU) {  // NCCL buffers small messages
        EXPECT_FALSE(works[i]->done()) << i << " has no receive yet";
      }
    }
    issued = true;
    for (size_t i = 0; i < works.size(); ++i) {
      ASSERT_TRUE(works[i]->Wait().ok());
      if (rank == 0) tensors[i].fill_(-1);
    }
    if (rank == 0) {
      if (!tensors.empty()) (void)tensors.back().cpu();
      reused = true;
      return;
    }
    ASSERT_TRUE(Eventually([&] { return reused.load(); }));
    for (size_t i = 0; i < tensors.size(); ++i) ExpectMessage(tensors[i], static_cast<int>(i), "late receives");
  });
}

TEST_P(MessageConformance, ReceivesThatWaitForTheirSendsHoldNothingUp) {
  std::atomic<bool> elsewhere = false;
  OnTwoRanks(3, [&](int rank, const std::vector<Group*>& groups) {
    Group &early = *groups[0], &down = *groups[1], &up = *groups[2];
    std::vector<at::Tensor> tensors;
    std::vector<std::unique_ptr<Work>> works;
    const auto issue = [&] {
      for (int i = 0; i < 4; ++i) {
        tensors.push_back(rank == 0 ? Message(early, i, 1000 * i + 1) : Slot(early, 1000 * i + 1));
        works.push_back(rank == 0 ? early.Send(tensors.back(), 1) : early.Recv(tensors.back(), 0));
      }
    };
    if (rank == 1) issue();
    for (int i = 0; i < 3; ++i) {  // messages there and back, while the receives are open
      const at::Tensor there = rank == 0 ? Message(down, i, 100'000) : Slot(down, 100'000);
      const at::Tensor back = rank == 1 ? Message(up, 10 + i, 100'000) : Slot(up, 100'000);
      ASSERT_TRUE((rank == 0 ? down.Send(there, 1) : down.Recv(there, 0))->Wait().ok());
      ASSERT_TRUE((rank == 1 ? up.Send(back, 0) : up.Recv(back, 1))->Wait().ok());
      if (rank == 1) ExpectMessage(there, i, "there");
      if (rank == 0) ExpectMessage(back, 10 + i, "back");
    }
    if (rank == 1) {
      for (const auto& work : works) EXPECT_FALSE(work->done());
      elsewhere = true;
    } else {
      ASSERT_TRUE(Eventually([&] { return elsewhere.load(); }));
      issue();
    }
    for (const auto& work : works) ASSERT_TRUE(work->Wait().ok());
    for (int i = 0; rank == 1 && i < 4; ++i) ExpectMessage(tensors[static_cast<size_t>(i)], i, "early receives");
  });
}

// Both ranks send on two groups and receive on two others, all at once; waits come in an order of their own, and the
// sends first, so that none depends on the other rank's waits.
TEST_P(MessageConformance, MessagesOfManyGroupsCross) {
  OnTwoRanks(4, [&](int rank, const std::vector<Group*>& groups) {
    std::vector<at::Tensor> received, sent;
    std::vector<std::unique_ptr<Work>> works, sends;
    for (int round = 0; round < 2; ++round) {  // the larger messages of both directions in the same round
      for (size_t i = 0; i < MessageSizes().size(); ++i) {
        for (size_t g = 0; g < groups.size(); ++g) {
          const int number = static_cast<int>(100 * round + 10 * i + g);
          const bool sends_here = static_cast<int>(g % 2) == rank;
          if (sends_here) {
            sent.push_back(Message(*groups[g], number, MessageSizes()[i]));
            sends.push_back(groups[g]->Send(sent.back(), 1 - rank));
          } else {
            received.push_back(Slot(*groups[g], MessageSizes()[i]));
            works.push_back(groups[g]->Recv(received.back(), 1 - rank));
          }
        }
      }
    }
    for (size_t i = sends.size(); i-- > 0;) ASSERT_TRUE(sends[i]->Wait().ok());
    for (size_t i = works.size(); i-- > 0;) ASSERT_TRUE(works[i]->Wait().ok());
    size_t next = 0;
    for (int round = 0; round < 2; ++round) {
      for (size_t i = 0; i < MessageSizes().size(); ++i) {
        for (size_t g = 0; g < groups.size(); ++g) {
          if (static_cast<int>(g % 2) == rank) continue;
          ExpectMessage(received[next++], static_cast<int>(100 * round + 10 * i + g), absl::StrCat("group ", g));
        }
      }
    }
  });
}

TEST_P(MessageConformance, MessagesAreDoneWithoutAWaitWhereTheTransportCanTell) {
  if (!GetParam().tells_of_messages) return;
  OnTwoRanks(1, [&](int rank, const std::vector<Group*>& groups) {
    for (const int64_t elements : MessageSizes()) {
      const at::Tensor values = rank == 0 ? Message(*groups[0], 3, elements) : Slot(*groups[0], elements);
      const auto work = rank == 0 ? groups[0]->Send(values, 1) : groups[0]->Recv(values, 0);
      ASSERT_TRUE(Eventually([&] { return work->done(); })) << elements;
      ASSERT_TRUE(work->Wait().ok());
      if (rank == 1) ExpectMessage(values, 3, "polled");
    }
  });
}

}  // namespace muster::collectives
