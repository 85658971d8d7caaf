#include "coordinator/simulate/simulation.h"
#include "common/log/log.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <set>
#include <string>

#include "absl/strings/numbers.h"

namespace muster::simulate {
namespace {

std::string TraceOf(uint64_t seed) {
  std::string trace;
  Simulate(seed, [&](const std::string& line) { trace += line + "\n"; });
  return trace;
}

// Discards the logs of the coordinators.
class Simulation : public testing::Test {
 public:
  static void SetUpTestSuite() { StartLog("simulate", LogLevel::kOff); }
};

TEST_F(Simulation, ASeedReplaysByteForByte) {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    const std::string trace = TraceOf(seed);
    EXPECT_GT(trace.size(), 10'000u);
    EXPECT_EQ(trace, TraceOf(seed));
    EXPECT_EQ(Simulate(seed).fingerprint, Simulate(seed).fingerprint);
  }
  EXPECT_NE(Simulate(1).fingerprint, Simulate(2).fingerprint);
}

// Each of these seeds once found a bug, at least in the simulation of that time: docs/internals/reliability.md.
TEST_F(Simulation, SeedsThatWereRed) {
  for (const uint64_t seed : {29u, 772u, 1170u, 1934u, 2412u, 6907u, 9371u, 50183u})
    EXPECT_EQ(Simulate(seed).failure, "") << seed;
}

// A fault that no longer happens would leave every invariant green. Those with an effect of their own are known by it:
// a checkpoint that finds the disk full, a rank that does not end. The list: docs/internals/reliability.md.
TEST_F(Simulation, EveryFaultHappens) {
  constexpr uint64_t kMostSeeds = 400;  // each fault happens a dozen times in so many, so a few dozen are enough
  std::set<std::string> missing = {
      "coordinator killed",
      "coordinator's machine lost power",
      "coordinator killed before a commit",
      "coordinator killed after a commit",
      "coordinator frozen",
      "worker daemon killed",
      "worker daemon frozen",
      "worker daemon got SIGTERM",
      "machine rebooted",
      "machine destroyed",
      "partition",
      "partition towards the coordinator",
      "partition towards the node",
      "flapping network",
      "stream broken",
      "slow network",
      "request lost",
      "reply lost",
      "message repeated",
      "rank killed",
      "rank frozen",
      "rank frozen for good",
      "job with a hang",
      "checkpoint on a full disk",
      "newest checkpoint damaged",
      "refused by a node",
      "rank stuck",
      "wall clock jumped",
      "run again without jumps of the wall clock",
      "store restored from a copy",
      "coordinator away for longer than the orphan grace",
      "nodes away for longer than the orphan grace",
      "orphan ended",
      "state disk full",
      "planned by the real planner",
      "user pauses",
      "user cancels",
      "user deletes",
      "node drained",
      "reader disconnected",
      "reservation set",
      "reservation deleted",
      "generation in its reservation",
      "exchange applied",
      "replica caught up",
      "replica late for an exchange",
      "replica out of reach of the others",
      "replica left out of an exchange",
      "run went on from an older exchange",
      "ranks of a replica asked before and after a decision",
      "rank ended in an exchange",
      "coordinator restarted in an exchange",
  };
  for (uint64_t seed = 1; seed <= kMostSeeds && !missing.empty(); ++seed) {
    for (const auto& [name, count] : Simulate(seed).counts) {
      if (count > 0) missing.erase(name);
    }
  }
  EXPECT_EQ(missing, std::set<std::string>());
}

// Ten blocks of a hundred seeds; $MUSTER_SEEDS gives another number, for slow builds.
uint64_t SeedsABlock() {
  const char* const text = getenv("MUSTER_SEEDS");
  uint64_t seeds = 100;
  if (text != nullptr && (!absl::SimpleAtoi(text, &seeds) || seeds < 1)) ADD_FAILURE() << "MUSTER_SEEDS: " << text;
  return seeds;
}

class Seeds : public Simulation, public testing::WithParamInterface<uint64_t> {};

TEST_P(Seeds, EveryInvariantHolds) {
  const uint64_t seeds = SeedsABlock();
  for (uint64_t seed = GetParam() * seeds + 1; seed <= (GetParam() + 1) * seeds; ++seed) {
    const Outcome outcome = Simulate(seed);
    EXPECT_EQ(outcome.failure, "") << "bazel run //coordinator/simulate/program:muster-simulate -- --verbose --seed "
                                   << seed;
    EXPECT_GE(outcome.virtual_time, absl::Minutes(10));
  }
}

INSTANTIATE_TEST_SUITE_P(AThousand, Seeds, testing::Range<uint64_t>(0, 10));

}  // namespace
}  // namespace muster::simulate
