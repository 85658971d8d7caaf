// The orders of pipelines beside those of torch.distributed.pipelining.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "strategies/pipeline/orders.h"
#include "strategies/pipeline/stages.h"
#include "tests/parity/peer.h"

namespace muster::parity {
namespace {

using pipeline::OrderOptions;
using Order = std::vector<Phase>;

std::string Text(const Order& order) {
  constexpr const char* kLetters[] = {"F", "B", "W"};
  return absl::StrJoin(order, " ", [&](std::string* out, const Phase& phase) {
    absl::StrAppend(out, kLetters[static_cast<size_t>(phase.kind)], phase.chunk, ".", phase.microbatch);
  });
}

std::vector<Order> OursOf(PipelineSchedule schedule, const OrderOptions& options) {
  std::vector<Order> all;
  for (uint32_t stage = 0; stage < options.stages; ++stage) all.push_back(OrderOf(schedule, options, stage));
  return all;
}

std::vector<Order> TheirsOf(const char* schedule, const OrderOptions& options) {
  const auto answer = Peer::Get().AskOrders({{"schedule", schedule},
                                             {"stages", options.stages},
                                             {"chunks", options.chunks},
                                             {"microbatches", options.microbatches}});
  EXPECT_TRUE(answer.ok()) << answer.status();
  std::vector<Order> all;
  if (!answer.ok()) return all;
  for (const auto& rank : (*answer)["ranks"]) {
    Order& order = all.emplace_back();
    for (const std::string text : rank) {
      Phase& phase = order.emplace_back();
      phase.kind = text[0] == 'F'   ? PhaseKind::kForward
                   : text[0] == 'B' ? PhaseKind::kBackward
                                    : PhaseKind::kBackwardWeights;
      phase.chunk = text[1] - '0';
      phase.microbatch = std::stoi(text.substr(3));
    }
  }
  return all;
}

void ExpectTheSame(PipelineSchedule schedule, const char* theirs, const OrderOptions& options) {
  const std::vector<Order> ours = OursOf(schedule, options), peers = TheirsOf(theirs, options);
  ASSERT_EQ(ours.size(), peers.size());
  for (size_t rank = 0; rank < ours.size(); ++rank) {
    EXPECT_EQ(Text(ours[rank]), Text(peers[rank]))
        << theirs << ": rank " << rank << " of " << options.stages << ", " << options.chunks << " chunks, "
        << options.microbatches << " microbatches";
  }
}

// A step of such orders, if a forward takes one unit of time, and a backward two or each of its halves one.
struct Played {
  int time = 0;
  int most_kept = 0;  // of chunks and microbatches on a rank, between a forward and its last backward
};
Played Play(PipelineSchedule schedule, const OrderOptions& options, const std::vector<Order>& orders, bool splits) {
  Played played;
  const auto last = static_cast<int32_t>(options.stages * options.chunks) - 1;
  std::map<std::tuple<PhaseKind, int32_t, int32_t>, int> ended;  // by kind, the model's chunk and microbatch
  std::vector<size_t> next(orders.size());
  std::vector<int> free(orders.size()), kept(orders.size());
  for (bool more = true; more;) {
    more = false;
    for (size_t rank = 0; rank < orders.size(); ++rank) {
      while (next[rank] < orders[rank].size()) {
        const Phase& phase = orders[rank][next[rank]];
        int32_t chunk = -1;  // of the model: the rank's phase.chunk-th
        for (int32_t own = -1; own < phase.chunk;) {
          own += pipeline::StageOfChunk(schedule, static_cast<uint32_t>(++chunk), options.stages) == rank;
        }
        std::vector<std::tuple<PhaseKind, int32_t, int32_t>> needs;
        const int32_t m = phase.microbatch;
        if (phase.kind == PhaseKind::kForward && chunk > 0) needs = {{PhaseKind::kForward, chunk - 1, m}};
        if (phase.kind == PhaseKind::kBackward) needs = {{PhaseKind::kForward, chunk, m}};
        if (phase.kind == PhaseKind::kBackward && chunk < last) needs.push_back({PhaseKind::kBackward, chunk + 1, m});
        if (phase.kind == PhaseKind::kBackwardWeights) needs = {{PhaseKind::kBackward, chunk, m}};
        if (!std::all_of(needs.begin(), needs.end(), [&](const auto& need) { return ended.contains(need); })) break;
        int begin = free[rank];
        for (const auto& need : needs) begin = std::max(begin, ended.at(need));
        free[rank] = begin + (phase.kind == PhaseKind::kBackward && !splits ? 2 : 1);
        ended[{phase.kind, chunk, m}] = free[rank];
        played.time = std::max(played.time, free[rank]);
        if (phase.kind == PhaseKind::kForward) played.most_kept = std::max(played.most_kept, ++kept[rank]);
        kept[rank] -= phase.kind == (splits ? PhaseKind::kBackwardWeights : PhaseKind::kBackward);
        ++next[rank], more = true;
      }
    }
  }
  for (size_t rank = 0; rank < orders.size(); ++rank) EXPECT_EQ(next[rank], orders[rank].size()) << "rank " << rank;
  return played;
}

TEST(Orders, OfGPipeAreTheSame) {
  for (const uint32_t stages : {1u, 2u, 4u}) {
    for (const uint32_t microbatches : {1u, 3u, 8u}) {
      ExpectTheSame(PIPELINE_SCHEDULE_GPIPE, "gpipe", {stages, 1, microbatches});
    }
  }
}

// PyTorch's list of its interleaved schedule with split backwards is that of ZB-H1 where there is one chunk.
TEST(Orders, OfZeroBubbleH1AreTheSame) {
  for (const auto& [stages, microbatches] : std::vector<std::pair<uint32_t, uint32_t>>{
           {2, 2}, {2, 5}, {3, 4}, {4, 4}, {4, 8}, {4, 7}, {4, 12}, {8, 8}, {8, 32}, {4, 3}, {8, 2}}) {
    ExpectTheSame(PIPELINE_SCHEDULE_ZERO_BUBBLE, "interleaved_zero_bubble", {stages, 1, microbatches});
  }
}

// Schedule1F1B's list is for pictures: in PyTorch 2.13 its last rank begins with microbatch 1 and ends with one that
// does not exist. What runs is 1F1B, which ZB-H1's order is without the gradients of weights (Qi et al. 2024,
// section 2.3).
TEST(Orders, Of1F1BAreThoseOfZeroBubbleH1WithoutWeights) {
  for (const auto& [stages, microbatches] :
       std::vector<std::pair<uint32_t, uint32_t>>{{2, 5}, {4, 4}, {4, 8}, {4, 3}, {8, 32}}) {
    const OrderOptions options{stages, 1, microbatches};
    std::vector<Order> peers = TheirsOf("interleaved_zero_bubble", options);
    ASSERT_EQ(peers.size(), stages);
    for (uint32_t rank = 0; rank < stages; ++rank) {
      std::erase_if(peers[rank], [](const Phase& phase) { return phase.kind == PhaseKind::kBackwardWeights; });
      EXPECT_EQ(Text(OrderOf(PIPELINE_SCHEDULE_1F1B, options, rank)), Text(peers[rank])) << rank;
    }
  }
}

TEST(Orders, InterleavedAreTheSameInWholeGroupsOfMicrobatches) {
  for (const auto& [stages, chunks, microbatches] : std::vector<std::tuple<uint32_t, uint32_t, uint32_t>>{
           {2, 2, 2}, {2, 2, 8}, {2, 4, 6}, {3, 2, 6}, {4, 2, 4}, {4, 2, 8}, {4, 3, 12}, {4, 4, 16}, {8, 2, 16}}) {
    ExpectTheSame(PIPELINE_SCHEDULE_INTERLEAVED, "interleaved", {stages, chunks, microbatches});
  }
}

// Groups that are not whole: of thirteen microbatches on four stages PyTorch refuses to make three groups, and of ten
// it makes two of five, as here. The step is never longer, and the bubble the published one: P - 1 forwards and
// backwards of a chunk (Narayanan et al. 2021, section 2.2.2).
TEST(Orders, InterleavedOfAnyNumberOfMicrobatchesIdleAsPublished) {
  int compared = 0;
  for (const uint32_t stages : {2u, 3u, 4u, 8u}) {
    for (const uint32_t chunks : {2u, 3u}) {
      for (uint32_t microbatches = stages; microbatches < 5 * stages; ++microbatches) {
        const OrderOptions options{stages, chunks, microbatches};
        const Played ours =
            Play(PIPELINE_SCHEDULE_INTERLEAVED, options, OursOf(PIPELINE_SCHEDULE_INTERLEAVED, options), false);
        EXPECT_EQ(ours.time, static_cast<int>(3 * (chunks * microbatches + stages - 1)))
            << stages << " stages, " << chunks << " chunks, " << microbatches << " microbatches";
        if (microbatches % (microbatches / stages) != 0) continue;
        const Played peer = Play(PIPELINE_SCHEDULE_INTERLEAVED, options, TheirsOf("interleaved", options), false);
        EXPECT_LE(ours.time, peer.time);
        // A group may have one more here than there.
        EXPECT_LE(ours.most_kept, peer.most_kept + static_cast<int>(chunks - 1)) << stages << " " << microbatches;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 50);
}

TEST(Orders, OfZeroBubbleVAreTheSame) {
  for (const auto& [stages, microbatches] : std::vector<std::pair<uint32_t, uint32_t>>{
           {2, 1}, {2, 3}, {2, 8}, {3, 7}, {4, 4}, {4, 8}, {4, 16}, {8, 15}, {8, 32}}) {
    ExpectTheSame(PIPELINE_SCHEDULE_ZERO_BUBBLE, "zero_bubble_v", {stages, 2, microbatches});
  }
}

// Section 2.3 and table 1 of Qi et al. 2024, if F, B and W take as long: ZB-H1 idles a third of 1F1B's time and keeps
// as much as its first stage.
TEST(Orders, OfZeroBubbleH1IdleAsPublished) {
  for (const uint32_t stages : {2u, 4u, 8u}) {
    const OrderOptions options{stages, 1, 3 * stages};
    const int busy = 3 * static_cast<int>(options.microbatches), bubble = static_cast<int>(stages) - 1;
    const Played one = Play(PIPELINE_SCHEDULE_1F1B, options, OursOf(PIPELINE_SCHEDULE_1F1B, options), false);
    const Played zero =
        Play(PIPELINE_SCHEDULE_ZERO_BUBBLE, options, OursOf(PIPELINE_SCHEDULE_ZERO_BUBBLE, options), true);
    EXPECT_EQ(one.time, busy + 3 * bubble);
    EXPECT_EQ(zero.time, busy + bubble);
    EXPECT_EQ(one.most_kept, static_cast<int>(stages));
    EXPECT_EQ(zero.most_kept, static_cast<int>(stages));
  }
}

}  // namespace
}  // namespace muster::parity
