#include "cli/commands/sweep_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "absl/strings/numbers.h"

namespace muster::cli {
namespace {

TEST(Sweep, RandomTrialsAreWithinTheirRangesAndTheSameAgain) {
  const std::vector<std::string> arrays = {"seed=1,2,3"},
                                 ranges = {"optimizer.lr=log:1e-5..1e-1", "dropout.rate=0..0.5"};
  const std::vector<Trial> trials = RandomTrials(arrays, ranges, 400, 7).value();
  ASSERT_EQ(trials.size(), 400u);
  std::set<std::string> seeds;
  int small = 0;
  for (const Trial& trial : trials) {
    ASSERT_EQ(trial.size(), 3u);
    seeds.insert(trial[0].value);
    double lr = 0, rate = 0;
    EXPECT_EQ(trial[0].flag, "--array seed");
    EXPECT_EQ(trial[1].flag, "--random optimizer.lr");
    ASSERT_TRUE(absl::SimpleAtod(trial[1].value, &lr)) << trial[1].value;
    ASSERT_TRUE(absl::SimpleAtod(trial[2].value, &rate)) << trial[2].value;
    EXPECT_GE(lr, 0.99e-5);
    EXPECT_LE(lr, 1.01e-1);
    EXPECT_GE(rate, 0);
    EXPECT_LE(rate, 0.5);
    small += lr < 1e-3 ? 1 : 0;
  }
  EXPECT_EQ(seeds, (std::set<std::string>{"1", "2", "3"}));
  EXPECT_NEAR(small, 200, 50) << "1e-3 is the middle of the logarithmic scale";
  EXPECT_EQ(RandomTrials(arrays, ranges, 400, 7).value(), trials);
  EXPECT_NE(RandomTrials(arrays, ranges, 400, 8).value(), trials);
  const std::vector<Trial> fewer = RandomTrials(arrays, ranges, 10, 7).value();
  EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), trials.begin())) << "more trials begin with the same ones";
  for (const char* bad : {"lr", "lr=1", "lr=2..1", "lr=log:0..1", "=1..2", "a..b=1..2", "lr=a..b", "lr=1..inf"}) {
    EXPECT_FALSE(RandomTrials({}, {bad}, 1, 1).ok()) << bad;
  }
}

TrialProgress Losses(const std::vector<double>& by_step, bool ended = false) {
  TrialProgress trial;
  for (size_t i = 0; i < by_step.size(); ++i) trial.values[i + 1] = by_step[i];
  trial.ended = ended;
  return trial;
}

TEST(Sweep, TheWorstHalfAtARungIsOut) {
  const Halving halving{.rungs = {2, 4}, .keep = 0.5};
  using Losers = std::map<size_t, uint64_t>;
  std::vector<TrialProgress> trials = {Losses({5, 4}), Losses({5, 1}), Losses({5, 3}), Losses({5})};
  EXPECT_EQ(LosersOf(halving, trials), Losers()) << "one is not there yet";
  trials[3] = Losses({5, 2});
  EXPECT_EQ(LosersOf(halving, trials), (Losers{{0, 2}, {2, 2}}));
  // What a trial does after the rung does not matter any more.
  trials[0] = Losses({5, 4, 0});
  trials[1] = Losses({5, 1, 9, 9});
  EXPECT_EQ(LosersOf(halving, trials), (Losers{{0, 2}, {2, 2}})) << "the last one has not reached step 4";
  trials[3] = Losses({5, 2, 2, 2});
  EXPECT_EQ(LosersOf(halving, trials), (Losers{{0, 2}, {2, 2}, {1, 4}}));
  EXPECT_EQ(LosersOf({.rungs = {2}, .keep = 0.5, .maximize = true}, trials), (Losers{{1, 2}, {3, 2}}));
}

TEST(Sweep, WhatHasNoValueComesLast) {
  const Halving halving{.rungs = {2}, .keep = 0.5};
  std::vector<TrialProgress> trials = {Losses({}, true), Losses({1, NAN}), Losses({9, 8}), Losses({9, 9})};
  EXPECT_EQ(LosersOf(halving, trials), (std::map<size_t, uint64_t>{{0, 2}, {1, 2}}));
  trials[2].failed = trials[2].ended = true;
  EXPECT_EQ(LosersOf(halving, trials), (std::map<size_t, uint64_t>{{1, 2}, {2, 2}})) << "of equals the earlier goes on";
  EXPECT_EQ(LosersOf({.rungs = {1, 2, 3}, .keep = 0.1}, {Losses({1, 1, 1})}), (std::map<size_t, uint64_t>()));
}

}  // namespace
}  // namespace muster::cli
