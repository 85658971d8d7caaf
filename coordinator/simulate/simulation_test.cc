#include "coordinator/simulate/simulation.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <string>

namespace muster::simulate {
namespace {

std::string TraceOf(uint64_t seed) {
  std::string trace;
  Simulate(seed, [&](const std::string& line) { trace += line + "\n"; });
  return trace;
}

// Nobody reads what the coordinators would log.
class Simulation : public testing::Test {
 public:
  static void SetUpTestSuite() { spdlog::set_level(spdlog::level::off); }
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

// Each was red once (docs/reliability.md says why), at least in the simulation of its day.
TEST_F(Simulation, SeedsThatWereRed) {
  for (const uint64_t seed : {29u, 772u, 1170u, 2412u, 9371u}) EXPECT_EQ(Simulate(seed).failure, "") << seed;
}

// Each block is a shard's.
class Seeds : public Simulation, public testing::WithParamInterface<uint64_t> {};

TEST_P(Seeds, EveryInvariantHolds) {
  constexpr uint64_t kSeeds = 100;
  for (uint64_t seed = GetParam() * kSeeds + 1; seed <= (GetParam() + 1) * kSeeds; ++seed) {
    const Verdict verdict = Simulate(seed);
    EXPECT_EQ(verdict.failure, "") << "bazel run //coordinator/simulate/program:muster-simulate -- --verbose --seed "
                                   << seed;
    EXPECT_GE(verdict.virtual_time, absl::Minutes(10));
  }
}

INSTANTIATE_TEST_SUITE_P(AThousand, Seeds, testing::Range<uint64_t>(0, 10));

}  // namespace
}  // namespace muster::simulate
