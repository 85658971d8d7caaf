#include "strategies/pipeline/cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <tuple>

#include "absl/strings/match.h"

namespace muster::pipeline {
namespace {

std::vector<UnitLoad> Works(const std::vector<double>& works) {
  std::vector<UnitLoad> units;
  for (const double work : works) units.push_back({.work = work, .elements = 1});
  return units;
}

TEST(CutUnits, TheSlowestStageIsAsFastAsCanBe) {
  const std::vector<UnitLoad> units = Works({0, 3, 3, 3, 3, 5});
  EXPECT_EQ(CutUnits(units, std::vector<ChunkPlace>(1))->begins, (std::vector<int>{0}));
  EXPECT_EQ(CutUnits(units, std::vector<ChunkPlace>(2))->begins, (std::vector<int>{0, 4})) << "9 and 8";
  EXPECT_EQ(CutUnits(units, std::vector<ChunkPlace>(3))->begins, (std::vector<int>{0, 3, 5})) << "6, 6 and 5";
}

TEST(CutUnits, AFastStageHasMore) {
  const std::vector<UnitLoad> units = Works({1, 1, 1, 1, 1, 1, 1, 1});
  EXPECT_EQ(CutUnits(units, {ChunkPlace{.speed = 3}, ChunkPlace{.speed = 1}})->begins, (std::vector<int>{0, 6}));
  EXPECT_EQ(CutUnits(units, {ChunkPlace{.speed = 1}, ChunkPlace{.speed = 1}, ChunkPlace{.speed = 2}})->begins,
            (std::vector<int>{0, 2, 4}));
}

// The first of two equal stages has the embedding, of as many parameters as four layers, and so two layers fewer.
TEST(CutUnits, MemoryMovesTheCut) {
  std::vector<UnitLoad> units = Works({0, 1, 1, 1, 1, 1, 1, 1, 1});
  units[0].elements = 4;
  std::vector<ChunkPlace> places(2, {.element_bytes = 2, .room_bytes = 12});
  const Cut cut = *CutUnits(units, places);
  EXPECT_EQ(cut.begins, (std::vector<int>{0, 3})) << "4 + 2 elements, and 6";
  EXPECT_EQ(cut.lacking_bytes, 0);
  places[0].room_bytes = 20;
  EXPECT_EQ(CutUnits(units, places)->begins, (std::vector<int>{0, 5})) << "4 layers each";
  // 1F1B: the first stage keeps two microbatches, the last one.
  for (UnitLoad& unit : units) unit.elements = 0, unit.kept_bytes = 1;
  places = {{.kept_times = 2, .room_bytes = 8}, {.kept_times = 1, .room_bytes = 8}};
  EXPECT_EQ(CutUnits(units, places)->begins, (std::vector<int>{0, 4})) << "8 bytes, and 5";
}

TEST(CutUnits, WithoutACutThatFitsItSaysWhoLacksHowMuch) {
  const std::vector<UnitLoad> units = Works({1, 1, 1, 1});
  const std::vector<ChunkPlace> places = {{.element_bytes = 10, .room_bytes = 12},
                                          {.element_bytes = 10, .room_bytes = 25}};
  const Cut cut = *CutUnits(units, places);
  EXPECT_EQ(cut.begins, (std::vector<int>{0, 1}));
  EXPECT_EQ(cut.lacks, 1u);
  EXPECT_EQ(cut.lacking_bytes, 5) << "three units of 10 bytes in 25";
}

// 80 layers and a head of 1.2 layers' work: 81.2 / 8 is 10.15, so one stage takes 11, and the others have no reason to.
// With memory for 8 layers on the first, 7 stages share 73.2: 10.46.
TEST(CutUnits, StagesThatNeedNotBeTheSlowestAreEven) {
  std::vector<double> works(82, 1);
  works.front() = 0, works.back() = 1.2;
  std::vector<UnitLoad> units = Works(works);
  units.front().elements = 0;
  std::vector<ChunkPlace> places(8);
  for (const bool little_memory : {false, true}) {
    if (little_memory) places[0].element_bytes = 1, places[0].room_bytes = 8;
    const Cut cut = *CutUnits(units, places);
    EXPECT_EQ(cut.lacking_bytes, 0);
    int slowest = 0;
    for (size_t c = 0; c < 8; ++c) {
      const int layers = (c < 7 ? cut.begins[c + 1] : 81) - std::max(cut.begins[c], 1);
      const bool limited = little_memory && c == 0;
      EXPECT_GE(layers, limited ? 8 : 9) << c;
      EXPECT_LE(layers, limited ? 8 : 11) << c;
      slowest += layers == 11;
    }
    EXPECT_LE(slowest, little_memory ? 4 : 2);
  }
}

// 32 layers and a head of three layers' work on four stages of two chunks: 35 / 4 is 8.75, so no stage has less than 9.
TEST(CutStages, TheSlowestStageCountsAndNotItsChunks) {
  std::vector<double> works(33, 1);
  works.front() = 0, works.push_back(3);
  const std::vector<UnitLoad> units = Works(works);
  for (const std::vector<uint32_t>& stage_of_chunk :
       {std::vector<uint32_t>{0, 1, 2, 3, 0, 1, 2, 3}, std::vector<uint32_t>{0, 1, 2, 3, 3, 2, 1, 0}}) {
    const Cut cut = *CutStages(units, std::vector<ChunkPlace>(4), stage_of_chunk);
    std::vector<double> seconds(4);
    for (size_t c = 0; c < 8; ++c) {
      const size_t end = c + 1 < 8 ? static_cast<size_t>(cut.begins[c + 1]) : units.size();
      for (auto u = static_cast<size_t>(cut.begins[c]); u < end; ++u) seconds[stage_of_chunk[c]] += works[u];
    }
    EXPECT_EQ(*std::max_element(seconds.begin(), seconds.end()), 9);
  }
}

// Two stages of two chunks: what one chunk of a stage does not need the other one may have.
TEST(CutStages, ChunksOfAStageShareItsMemory) {
  std::vector<UnitLoad> units = Works({1, 1, 1, 1});
  units[0].elements = 10;
  const std::vector<ChunkPlace> places = {{.element_bytes = 1, .room_bytes = 12},
                                          {.element_bytes = 1, .room_bytes = 2}};
  const Cut cut = *CutStages(units, places, {0, 1, 0, 1});
  EXPECT_EQ(cut.lacking_bytes, 0);
  EXPECT_EQ(CutStages(units, {places[1], places[0]}, {0, 1, 0, 1})->lacking_bytes, 9) << "11 bytes in 2";
  EXPECT_EQ(CutStages(units, {places[1], places[0]}, {0, 1, 0, 1})->lacks, 0u);
}

// A layer's work has a price of its own, as dense and sparse layers have, and the last has that of a head. The least
// bound of the slowest chunk by dynamic programming, for which each chunk's begin is tried.
TEST(CutUnits, OfThousandsOfUnitsTheSlowestChunkIsAsFastAsCanBe) {
  std::mt19937 random(3);
  for (const size_t chunks : {2u, 3u, 7u, 32u}) {
    std::vector<UnitLoad> units(600 + random() % 300);
    for (UnitLoad& unit : units) unit = {.work = static_cast<double>(1 + random() % 5), .elements = 1, .kept_bytes = 1};
    units.back().work = 20;
    std::vector<double> until(1);
    for (const UnitLoad& unit : units) until.push_back(until.back() + unit.work);
    std::vector<double> least = until;  // of one chunk, by its end
    for (size_t c = 1; c < chunks; ++c) {
      for (size_t end = units.size(); end > c; --end) {
        double best = std::numeric_limits<double>::infinity();
        for (size_t begin = c; begin < end; ++begin)
          best = std::min(best, std::max(least[begin], until[end] - until[begin]));
        least[end] = best;
      }
    }
    const Cut cut = *CutUnits(units, std::vector<ChunkPlace>(chunks));
    double slowest = 0, fastest = until.back();
    for (size_t c = 0; c < chunks; ++c) {
      const size_t end = c + 1 < chunks ? static_cast<size_t>(cut.begins[c + 1]) : units.size();
      ASSERT_LT(cut.begins[c], static_cast<int>(end));
      const double work = until[end] - until[static_cast<size_t>(cut.begins[c])];
      slowest = std::max(slowest, work), fastest = std::min(fastest, work);
    }
    EXPECT_EQ(slowest, least.back()) << chunks;
    EXPECT_GT(fastest, slowest - 26) << "and the others are about as slow: " << chunks;
  }
}

// 4,096 layers and a head of two layers' work: 4,098 on 256 chunks is 16.008, so one takes 17. Memory for 15 layers on
// the first 16 chunks leaves 3,858 for 240: 16.07.
TEST(CutUnits, ThousandsOfUnitsTakeLittleWork) {
  std::vector<UnitLoad> units(4098, {.work = 1, .elements = 1});
  units.front().work = 0, units.back().work = 2;
  std::vector<ChunkPlace> places(256);
  for (const bool little_memory : {false, true}) {
    strategies::Budget budget({.work = 2'000'000});
    for (size_t c = 0; little_memory && c < 16; ++c) places[c].element_bytes = 1, places[c].room_bytes = 15;
    const auto cut = CutUnits(units, places, &budget);
    ASSERT_TRUE(cut.ok()) << cut.status();
    EXPECT_EQ(cut->lacking_bytes, 0);
    for (size_t c = 0; c < 256; ++c) {
      const int end = c + 1 < 256 ? cut->begins[c + 1] : 4098, size = end - cut->begins[c];
      EXPECT_LE(size, little_memory && c < 16 ? 15 : 17) << c;
      EXPECT_GE(size, 14) << c;
    }
  }
}

TEST(CutUnits, WorkIsCounted) {
  strategies::Budget budget({.work = 50});
  const absl::Status status =
      CutUnits(std::vector<UnitLoad>(40, {.work = 1}), std::vector<ChunkPlace>(3), &budget).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(status.message(), "a cut of 40 units into 3 chunks")) << status;
}

// Against all cuts of random units at random places.
TEST(CutUnits, NoOtherCutIsBetter) {
  std::mt19937 random(7);
  const auto below = [&](uint32_t n) { return static_cast<double>(random() % n); };
  int fit = 0, unfit = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<UnitLoad> units(1 + random() % 9);
    for (UnitLoad& unit : units) unit = {.work = below(6), .elements = below(6), .kept_bytes = below(4)};
    std::vector<ChunkPlace> places(1 + random() % units.size());
    for (ChunkPlace& place : places) {
      place = {.speed = 1 + below(3), .element_bytes = below(4), .kept_times = below(4)};
      if (random() % 4 > 0) place.room_bytes = 5 + below(60);
    }
    const auto worst = [&](const std::vector<int>& begins) {
      double lacking = 0, seconds = 0;
      for (size_t c = 0; c < places.size(); ++c) {
        const size_t end = c + 1 < places.size() ? static_cast<size_t>(begins[c + 1]) : units.size();
        double work = 0, bytes = 0;
        for (auto u = static_cast<size_t>(begins[c]); u < end; ++u) {
          work += units[u].work;
          bytes += units[u].elements * places[c].element_bytes + units[u].kept_bytes * places[c].kept_times;
        }
        lacking = std::max(lacking, bytes - places[c].room_bytes);
        seconds = std::max(seconds, work / places[c].speed);
      }
      return std::pair(lacking, lacking > 0 ? 0 : seconds);
    };
    std::pair<double, double> best = {std::numeric_limits<double>::infinity(), 0};
    const std::function<void(std::vector<int>)> all = [&](std::vector<int> begins) {
      if (begins.size() == places.size()) {
        best = std::min(best, worst(begins));
        return;
      }
      for (int b = begins.back() + 1; b < static_cast<int>(units.size()); ++b) {
        begins.push_back(b);
        all(begins);
        begins.pop_back();
      }
    };
    all({0});
    const Cut cut = *CutUnits(units, places);
    ASSERT_EQ(cut.begins.size(), places.size());
    EXPECT_EQ(worst(cut.begins), best);
    EXPECT_EQ(cut.lacking_bytes, best.first);
    ++(best.first > 0 ? unfit : fit);
  }
  EXPECT_GT(fit, 500);
  EXPECT_GT(unfit, 200);
}

}  // namespace
}  // namespace muster::pipeline
