#include "worker/trainer/pending_votes.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace muster::trainer {
namespace {

using engine::Votes;

// The step after which a rank stops that issues up to `ahead` steps more, but none while the step in `drains` is in
// flight. Step 5 brings a vote to stop, and so do all later ones.
uint64_t StopsAfter(uint64_t ahead, uint64_t drains) {
  PendingVotes votes(ahead);
  uint64_t issued = 0, done = 0;
  while (done < 100) {
    ++issued;
    const auto keep = [&] { return issued == drains || votes.DueAfter(issued) ? 0 : ahead; };
    while (issued - done > keep()) {
      ++done;
      votes.Add(done, {.stop = done >= 5 ? 1u : 0u});
    }
    if (votes.DueAfter(done)) return issued == done ? done : 0;
  }
  return 0;
}

TEST(PendingVotes, ActAfterTheSameStepWhateverARankHasInFlight) {
  EXPECT_EQ(StopsAfter(0, 0), 5u) << "a CPU acts at once";
  for (uint64_t drains = 0; drains < 10; ++drains) EXPECT_EQ(StopsAfter(1, drains), 6u) << drains;
}

TEST(PendingVotes, AddUpUntilTheyAreTaken) {
  PendingVotes votes(1);
  votes.Add(1, {});
  EXPECT_FALSE(votes.DueAfter(2)) << "no rank voted";
  votes.Add(2, {.checkpoint = 1});
  votes.Add(3, {.stop = 2, .stop_without_checkpoint = 1});
  EXPECT_TRUE(votes.DueAfter(3));
  EXPECT_FALSE(votes.DueAfter(4));
  EXPECT_EQ(votes.Take(), (Votes{.stop = 2, .stop_without_checkpoint = 1, .checkpoint = 1}));
  EXPECT_FALSE(votes.DueAfter(3));
  EXPECT_EQ(votes.Take(), Votes());
}

}  // namespace
}  // namespace muster::trainer
