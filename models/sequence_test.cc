#include "models/sequence.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

namespace muster::models {
namespace {

// Of 24 tokens on three ranks six runs of four, by hand.
TEST(Sequence, ARankHasAnEarlyRunAndTheOneAsFarFromTheEnd) {
  using Runs = std::vector<TokenRun>;
  EXPECT_EQ(RunsOf(24, 3, 0), (Runs{{0, 4}, {20, 4}}));
  EXPECT_EQ(RunsOf(24, 3, 1), (Runs{{4, 4}, {16, 4}}));
  EXPECT_EQ(RunsOf(24, 3, 2), (Runs{{8, 4}, {12, 4}}));
  EXPECT_EQ(RunsOf(8, 2, 0), (Runs{{0, 2}, {6, 2}}));
  EXPECT_EQ(RunsOf(8, 2, 1), (Runs{{2, 2}, {4, 2}}));
  EXPECT_EQ(RunsOf(7, 1, 0), (Runs{{0, 7}})) << "one rank has the whole sequence";
}

// A token's query sees the keys up to its own.
TEST(Sequence, AllRanksComputeEquallyManyScores) {
  for (const uint32_t ranks : {1u, 2u, 3u, 4u, 8u, 64u}) {
    const uint64_t tokens = 6 * uint64_t{ranks};
    std::set<uint64_t> seen;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      uint64_t scores = 0, last = 0, own = 0;
      for (const TokenRun& run : RunsOf(tokens, ranks, rank)) {
        for (uint64_t token = run.begin; token < run.begin + run.size; ++token) {
          EXPECT_TRUE(seen.insert(token).second) << token << " is another rank's";
          EXPECT_TRUE(own == 0 || token > last) << "in the order of the sequence";
          last = token, ++own;
          for (uint64_t key = 0; key <= token; ++key) ++scores;
        }
      }
      EXPECT_EQ(own, 6u) << rank << " of " << ranks;
      EXPECT_EQ(scores * ranks, tokens * (tokens + 1) / 2) << rank << " of " << ranks;
    }
    EXPECT_EQ(seen.size(), tokens);
    EXPECT_EQ(*seen.rbegin(), tokens - 1);
  }
}

}  // namespace
}  // namespace muster::models
