#include "data/sampler.h"

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace muster::data {
namespace {

Order MakeOrder(uint64_t tokens, uint64_t context, DataOrder order, uint64_t seed = 1) {
  return Order({.tokens = tokens, .context = context, .order = order, .seed = seed});
}

TEST(Permute, IsABijectionForEverySize) {
  for (uint64_t size = 1; size < 300; ++size) {
    for (uint64_t key : {uint64_t{0}, uint64_t{17}, ~uint64_t{0}}) {
      std::set<uint64_t> seen;
      for (uint64_t i = 0; i < size; ++i) {
        const uint64_t to = Permute(key, size, i);
        EXPECT_LT(to, size);
        seen.insert(to);
      }
      EXPECT_EQ(seen.size(), size) << "key " << key;
    }
  }
}

// Each of the 6 orders of 3 elements is within 5 standard deviations of its expected count.
TEST(Permute, TakesEveryOrderOfASmallSet) {
  std::vector<int> counts(27, 0);
  constexpr int kKeys = 60000;
  for (uint64_t key = 0; key < kKeys; ++key) {
    ++counts[Permute(key, 3, 0) * 9 + Permute(key, 3, 1) * 3 + Permute(key, 3, 2)];
  }
  int orders = 0;
  for (const int count : counts) {
    if (count == 0) continue;
    ++orders;
    EXPECT_NEAR(count, kKeys / 6, 5 * 91.3);
  }
  EXPECT_EQ(orders, 6);
}

TEST(Permute, LeavesNoTraceOfNeighbours) {
  constexpr uint64_t kSize = 100'000;
  int kept = 0;
  for (uint64_t i = 0; i + 1 < kSize; ++i) kept += Permute(7, kSize, i + 1) == Permute(7, kSize, i) + 1;
  EXPECT_LT(kept, 10);  // 1 is expected
}

TEST(Order, SequentialIsTheStatedRuleAndWrapsAround) {
  const Order order = MakeOrder(35, 8, DATA_ORDER_SEQUENTIAL);  // 34 targets: 4 windows, 2 left over
  EXPECT_EQ(order.samples_per_epoch(), 4u);
  const std::vector<uint64_t> want = {0, 8, 16, 24, 0, 8};
  for (uint64_t k = 0; k < want.size(); ++k) EXPECT_EQ(order.Begin(k), want[k]);
}

TEST(Order, EverySampleFitsAndEachWindowComesOnceAnEpoch) {
  for (uint64_t context : {1, 2, 7, 16}) {
    for (uint64_t tokens = context + 1; tokens < 12 * context + 5; ++tokens) {
      const Order order = MakeOrder(tokens, context, DATA_ORDER_SHUFFLED, tokens);
      const uint64_t windows = order.samples_per_epoch();
      ASSERT_GE(windows, 1u);
      ASSERT_GE((windows + 2) * context + 1, tokens) << "more than a window and a rest is never read";
      for (uint64_t epoch = 0; epoch < 5; ++epoch) {
        std::set<uint64_t> begins;
        for (uint64_t k = epoch * windows; k < (epoch + 1) * windows; ++k) {
          ASSERT_LE(order.Begin(k) + context + 1, tokens);
          begins.insert(order.Begin(k));
        }
        ASSERT_EQ(begins.size(), windows);
        for (const uint64_t begin : begins) {
          ASSERT_EQ(begin % context, *begins.begin() % context);
          ASSERT_LT(begin, (*begins.begin() / context + windows) * context + context);
        }
      }
    }
  }
}

TEST(Order, EpochsAndSeedsDiffer) {
  const auto epoch = [](uint64_t seed, uint64_t number) {
    const Order order = MakeOrder(1000, 10, DATA_ORDER_SHUFFLED, seed);
    std::vector<uint64_t> begins;
    for (uint64_t i = 0; i < order.samples_per_epoch(); ++i) {
      begins.push_back(order.Begin(number * order.samples_per_epoch() + i));
    }
    return begins;
  };
  EXPECT_EQ(epoch(1, 0), epoch(1, 0));
  EXPECT_NE(epoch(1, 0), epoch(1, 1));
  EXPECT_NE(epoch(1, 0), epoch(2, 0));
  std::set<uint64_t> offsets;
  for (uint64_t e = 0; e < 200; ++e) offsets.insert(epoch(1, e)[0] % 10);
  EXPECT_EQ(offsets.size(), 10u) << "windows are cut everywhere";
}

// Resumed jobs of other versions depend on it: a change here is a change of the checkpoint format.
TEST(Order, StaysWhatItWas) {
  const Order order = MakeOrder(100'000, 128, DATA_ORDER_SHUFFLED, 1);
  std::vector<uint64_t> begins;
  for (uint64_t k : {0, 1, 2, 779, 780, 5000}) begins.push_back(order.Begin(k));
  EXPECT_EQ(begins, (std::vector<uint64_t>{80243, 63347, 17523, 16243, 32597, 46192}));
}

TEST(ReadSamples, GivesRowsOfContextPlusOneWhateverTheCut) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/samples.bin");
  {
    std::ofstream out(path, std::ios::binary);
    for (uint32_t i = 0; i < 500; ++i) out.write(reinterpret_cast<const char*>(&i), 2);
  }
  const TokenFile file = TokenFile::Open(path, 9).value();
  for (const DataOrder kind : {DATA_ORDER_SHUFFLED, DATA_ORDER_SEQUENTIAL}) {
    const Order order = MakeOrder(file.tokens(), 9, kind, 3);
    std::vector<uint32_t> all;
    ASSERT_TRUE(ReadSamples(file, order, 40, 30, all).ok());
    ASSERT_EQ(all.size(), 300u);
    for (uint64_t i = 0; i < 30; ++i) {
      for (uint64_t t = 0; t < 10; ++t) EXPECT_EQ(all[i * 10 + t], order.Begin(40 + i) + t);
    }
    // Another share of the same samples gives the same rows.
    std::vector<uint32_t> rows;
    ASSERT_TRUE(ReadSamples(file, order, 50, 7, rows).ok());
    EXPECT_EQ(rows, std::vector<uint32_t>(all.begin() + 100, all.begin() + 170));
  }
}

}  // namespace
}  // namespace muster::data
