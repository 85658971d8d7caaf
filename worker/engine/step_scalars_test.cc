#include "worker/engine/step_scalars.h"

#include <gtest/gtest.h>

namespace muster::engine {
namespace {

Votes SumOverRanks(int ranks, Votes (*vote)(int rank)) {
  StepScalars sum{};
  for (int rank = 0; rank < ranks; ++rank) {
    const StepScalars own = ToScalars(vote(rank));
    for (size_t i = 0; i < kStepScalars; ++i) sum[i] += own[i];
  }
  return ToVotes(sum.data());
}

TEST(StepScalars, CountsTheVotesOf1024Ranks) {
  // Any number of one counter leaves the others at zero.
  EXPECT_EQ(SumOverRanks(1024, [](int) { return Votes{.stop = 1}; }), (Votes{.stop = 1024}));
  EXPECT_EQ(SumOverRanks(1024, [](int) { return Votes{.stop_without_checkpoint = 1}; }),
            (Votes{.stop_without_checkpoint = 1024}));
  EXPECT_EQ(SumOverRanks(1024, [](int) { return Votes{.checkpoint = 1}; }), (Votes{.checkpoint = 1024}));
  // One vote among 1,024 is seen.
  EXPECT_EQ(SumOverRanks(1024, [](int rank) { return Votes{.stop = rank == 1023 ? 1u : 0u}; }), (Votes{.stop = 1}));
  const auto mixed = [](int rank) {
    return Votes{.stop = rank % 2 == 0 ? 1u : 0u, .stop_without_checkpoint = rank % 4 == 1 ? 1u : 0u, .checkpoint = 1};
  };
  EXPECT_EQ(SumOverRanks(1024, mixed), (Votes{.stop = 512, .stop_without_checkpoint = 256, .checkpoint = 1024}));
}

// More than the 2^20 votes at which a sum of weighted votes would have taken one request for another.
TEST(StepScalars, CountsMillionsExactly) {
  const Votes votes{.stop = 4'000'001, .stop_without_checkpoint = 3, .checkpoint = uint64_t{1} << 44};
  EXPECT_EQ(ToVotes(ToScalars(votes).data()), votes);
}

TEST(StepScalars, BeginWithoutALoss) { EXPECT_EQ(ToScalars({.stop = 1})[kLossSum], 0); }

}  // namespace
}  // namespace muster::engine
