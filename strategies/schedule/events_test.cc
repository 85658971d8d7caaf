#include "strategies/schedule/events.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace muster {
namespace {

TEST(FirstFreeSlots, Table) {
  struct Case {
    std::vector<Stay> stays;
    std::vector<int32_t> slots;
  };
  for (const auto& [stays, expected] : std::vector<Case>{
           {{}, {}},
           {{{0, 0}, {0, 0}, {1, 1}}, {0, 1, 0}},
           {{{0, 1}, {1, 2}, {2, 3}}, {0, 1, 0}},             // a slot is held in the phase of its end
           {{{0, 9}, {0, 1}, {0, 2}, {5, 5}}, {0, 1, 2, 1}},  // of two that are free the lower one
           {{{0, 2}, {0, 1}, {0, 9}, {5, 5}}, {0, 1, 2, 0}},  // and not the one that was freed first
           {{{0, 1}, {0, 9}, {2, 9}, {3, 9}}, {0, 1, 0, 2}},
       }) {
    int32_t slots = -1;
    EXPECT_EQ(FirstFreeSlots(stays, slots), expected);
    EXPECT_EQ(slots, expected.empty() ? 0 : 1 + *std::max_element(expected.begin(), expected.end()));
  }
}

// The rule as it reads: each slot is looked at, in order.
TEST(FirstFreeSlots, TakesTheFirstSlotThatIsFree) {
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    const uint32_t longest = 1 + random() % 40;
    std::vector<Stay> stays;
    uint32_t begin = random() % 3;
    for (size_t n = random() % 120; n > 0; --n, begin += random() % 3) {
      stays.push_back({begin, begin + static_cast<uint32_t>(random() % longest)});
    }
    std::vector<uint32_t> held_until;  // by slot
    std::vector<int32_t> expected;
    for (const Stay& stay : stays) {
      size_t slot = 0;
      while (slot < held_until.size() && held_until[slot] >= stay.begin) ++slot;
      if (slot == held_until.size()) held_until.emplace_back();
      held_until[slot] = stay.end;
      expected.push_back(static_cast<int32_t>(slot));
    }
    int32_t slots = -1;
    ASSERT_EQ(FirstFreeSlots(stays, slots), expected) << i;
    EXPECT_EQ(slots, static_cast<int32_t>(held_until.size())) << i;
  }
}

// Regression: looking at each slot in order takes 10^11 steps here.
TEST(FirstFreeSlots, HalfAMillionThatAreHeldTogetherTakeLittleTime) {
  constexpr uint32_t kStays = 500'000;
  std::vector<Stay> stays;
  for (uint32_t i = 0; i < kStays; ++i) stays.push_back({i, kStays + i});
  std::vector<int32_t> expected(kStays);
  std::iota(expected.begin(), expected.end(), 0);
  int32_t slots = -1;
  EXPECT_TRUE(FirstFreeSlots(stays, slots) == expected);
  EXPECT_EQ(slots, static_cast<int32_t>(kStays));
}

}  // namespace
}  // namespace muster
