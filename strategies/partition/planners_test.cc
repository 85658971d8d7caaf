#include "strategies/partition/planners.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/inventory.h"
#include "strategies/partition/explain.h"
#include "strategies/partition/flat.h"
#include "strategies/partition/table.h"

namespace muster::partition {
namespace {

using Weighting = std::vector<uint64_t>;

Inventory Gpt2Of(Gpt2Size size) {
  Model model;
  model.mutable_gpt2()->set_size(size);
  return *models::MakeInventory(*models::Resolve(model));
}

Inventory OddGpt2(uint32_t layers, uint32_t width, uint32_t vocabulary) {
  Model model;
  Gpt2& g = *model.mutable_gpt2();
  g.set_layers(layers), g.set_heads(1), g.set_width(width), g.set_vocabulary(vocabulary), g.set_context(19);
  return *models::MakeInventory(model);
}

// Units of any size with tensors of any shape, atom and group.
Inventory Random(std::mt19937& random, bool atoms) {
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  Inventory inventory;
  const uint32_t units = 1 + below(6);
  for (uint32_t u = 0; u < units; ++u) {
    Unit& unit = *inventory.add_units();
    unit.set_name(absl::StrCat("u", u));
    const uint32_t tensors = 1 + below(9);
    for (uint32_t t = 0; t < tensors; ++t) {
      Tensor& tensor = *unit.add_tensors();
      tensor.set_name(absl::StrCat("u", u, ".", t));
      for (uint32_t d = below(4); d > 0; --d) tensor.add_shape(1 + below(below(3) == 0 ? 130 : 12));
      tensor.set_decay(below(2) == 0);
      tensor.set_frozen(below(5) == 0);
      if (atoms) tensor.set_atom(static_cast<Atom>(below(3)));
    }
  }
  return inventory;
}

struct Planner {
  std::string name;
  std::function<PartitionTable(const Inventory&, const Weighting&)> plan;
  bool chained = true;
};

std::vector<Planner> RespectfulPlanners() {
  const auto size = [](const Weighting& w) { return static_cast<uint32_t>(w.size()); };
  return {{"rows", [=](const Inventory& i, const Weighting& w) { return Rows(i, size(w)); }, false},
          {"whole", [=](const Inventory& i, const Weighting& w) { return WholeTensors(i, size(w)); }},
          {"whole in runs", [=](const Inventory& i, const Weighting& w) { return WholeTensorsInRuns(i, size(w)); }},
          {"ragged", [](const Inventory& i, const Weighting& w) { return Ragged(i, w); }},
          {"ragged in runs", [](const Inventory& i, const Weighting& w) { return RaggedInRuns(i, w); }}};
}

// Check proves that everything is covered exactly once and no atom is divided.
void ExpectSound(const PartitionTable& table, const Inventory& inventory, bool chained) {
  const absl::Status status = Check(table, inventory);
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<OwnedUnit> units = OwnedUnits(table, inventory);
  for (const OwnedUnit& unit : units) {
    uint64_t end = 0;
    for (const OwnedRange& range : unit.ranges) {
      EXPECT_EQ(range.begin, end);
      EXPECT_GT(range.end, range.begin);
      EXPECT_TRUE(!chained || range.begin % kAlignElements == 0) << range.begin;
      end = range.end;
    }
    EXPECT_EQ(end, unit.flat.elements);
  }
  EXPECT_TRUE(!chained || Explain(table, inventory).cuts != Cuts::kRows);
}

TEST(Planners, TablesOfAnyModelAreSound) {
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    const Inventory inventory = Random(random, round % 2 == 0);
    Weighting weights(1 + random() % 9);
    for (uint64_t& w : weights) w = round % 3 == 0 ? 80'000'000'000 : 1 + random() % 100;
    for (const Planner& planner : RespectfulPlanners()) {
      SCOPED_TRACE(absl::StrCat("round ", round, ", ", planner.name, ", ", weights.size(), " shards"));
      const PartitionTable table = planner.plan(inventory, weights);
      ExpectSound(table, inventory, planner.chained);
      EXPECT_EQ(TableSha256(table), TableSha256(planner.plan(inventory, weights)));
      if (HasFatalFailure()) return;
    }
    if (round % 2 == 1) ExpectSound(Even(inventory, static_cast<uint32_t>(weights.size())), inventory, true);
  }
}

TEST(Planners, MoreShardsThanElementsLeavesSomeEmpty) {
  const Inventory inventory = OddGpt2(1, 3, 5);
  for (const Planner& planner : RespectfulPlanners()) {
    SCOPED_TRACE(planner.name);
    const PartitionTable table = planner.plan(inventory, Weighting(300, 1));
    ExpectSound(table, inventory, planner.chained);
    const std::vector<uint64_t> bytes = Explain(table, inventory).bytes;
    EXPECT_EQ(*std::min_element(bytes.begin(), bytes.end()), 0u);
  }
}

TEST(Planners, TensorsOfAnOwnerAreGroupedForTheOptimizer) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const Inventory inventory = Random(random, false);
    for (const bool ragged : {false, true}) {
      const PartitionTable table = ragged ? Ragged(inventory, Weighting(3, 1)) : WholeTensors(inventory, 3);
      for (const OwnedUnit& unit : OwnedUnits(table, inventory)) {
        for (const OwnedRange& range : unit.ranges) {
          int last = 0;
          for (const FlatTensor& t : unit.flat.tensors) {
            if (t.begin < range.begin || t.begin + t.elements > range.end) continue;  // cut: first or last of a share
            const int group = t.frozen ? 2 : t.decay ? 0 : 1;
            EXPECT_GE(group, last) << "round " << round << ", " << t.name;
            last = group;
          }
        }
      }
    }
  }
}

TEST(Whole, TheLargestGoesToWhoHasLeast) {
  Inventory inventory;
  Unit& unit = *inventory.add_units();
  unit.set_name("u");
  for (const uint64_t size : {16, 48, 32, 32, 64}) {
    Tensor& tensor = *unit.add_tensors();
    tensor.set_name(absl::StrCat(unit.tensors_size()));
    tensor.add_shape(size);
  }
  const PartitionTable table = WholeTensors(inventory, 2);  // 64 and 32; 48, 32 and 16
  const auto bytes = Explain(table, inventory).bytes;
  EXPECT_EQ(bytes, (std::vector<uint64_t>{4 * 96, 4 * 96}));
  EXPECT_EQ(table.units(0).boundaries(1), 96u);
  EXPECT_EQ(absl::StrJoin(table.units(0).pieces(), " ", [](std::string* s, const Piece& p) { *s += p.tensor(); }),
            "4 5 1 2 3");
}

// The smallest possible largest run, by trying all cuts.
uint64_t BestRuns(const std::vector<uint64_t>& sizes, size_t from, uint32_t parts) {
  uint64_t rest = 0;
  for (size_t i = from; i < sizes.size(); ++i) rest += sizes[i];
  if (parts == 1) return rest;
  uint64_t best = rest, sum = 0;
  for (size_t i = from; i < sizes.size(); ++i) {
    sum += sizes[i];
    best = std::min(best, std::max(sum, BestRuns(sizes, i + 1, parts - 1)));
  }
  return best;
}

TEST(Whole, RunsHaveTheSmallestLargestPart) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Inventory inventory = Random(random, false);
    while (inventory.units_size() > 2) inventory.mutable_units()->RemoveLast();
    std::vector<uint64_t> sizes;
    for (const Unit& unit : inventory.units()) {
      for (const FlatTensor& t : Flatten(unit).tensors) sizes.push_back((t.elements + 15) / 16 * 16);
    }
    const uint32_t shards = 1 + static_cast<uint32_t>(random() % 4);
    const auto bytes = Explain(WholeTensorsInRuns(inventory, shards), inventory).bytes;
    EXPECT_EQ(*std::max_element(bytes.begin(), bytes.end()), 4 * BestRuns(sizes, 0, shards)) << "round " << round;
    const bool empty = *std::min_element(bytes.begin(), bytes.end()) == 0;
    EXPECT_EQ(empty, sizes.size() < shards) << "round " << round;
  }
}

TEST(Whole, OfLargeModelsIsBalanced) {
  for (const Gpt2Size size : {GPT2_SIZE_LARGE, GPT2_SIZE_XL}) {
    const Inventory inventory = Gpt2Of(size);
    EXPECT_LE(Explain(WholeTensors(inventory, 8), inventory).over_mean, 1.02);
  }
}

// A unit with one owner would be gathered at the speed of one rank's link.
TEST(Whole, UnitsHaveSeveralOwners) {
  for (const Gpt2Size size : {GPT2_SIZE_SMALL, GPT2_SIZE_MEDIUM, GPT2_SIZE_LARGE, GPT2_SIZE_XL}) {
    const Inventory inventory = Gpt2Of(size);
    for (const uint32_t shards : {2, 4, 8}) {
      SCOPED_TRACE(absl::StrCat(Gpt2Size_Name(size), " on ", shards));
      double sum = 0;
      const Explanation e = Explain(WholeTensors(inventory, shards), inventory);
      for (const UnitExplanation& unit : e.units) {
        if (!absl::StartsWith(unit.unit, "h.")) continue;
        sum += unit.share;
        EXPECT_LE(unit.share, shards == 2 ? 1 : 0.6) << unit.unit;
      }
      EXPECT_LE(sum / (inventory.units_size() - 2), shards == 2 ? 0.75 : 0.4);  // two matrices of a block are a third
    }
  }
}

TEST(Rows, AreCutAsTorchChunkCuts) {
  Inventory inventory;
  Unit& unit = *inventory.add_units();
  unit.set_name("u");
  Tensor& tensor = *unit.add_tensors();
  tensor.set_name("t");
  tensor.add_shape(5), tensor.add_shape(7);
  const PartitionTable table = Rows(inventory, 4);  // torch.chunk(5 rows, 4): 2, 2, 1
  ASSERT_EQ(table.units(0).pieces(0).extents_size(), 3);
  EXPECT_EQ(table.units(0).pieces(0).extents(1).begin(), 14u);
  EXPECT_EQ(table.units(0).pieces(0).extents(2).length(), 7u);
  const Inventory tiny = Gpt2Of(GPT2_SIZE_TINY);
  const Explanation rows = Explain(Rows(tiny, 4), tiny), even = Explain(Even(tiny, 4), tiny);
  EXPECT_EQ(rows.cuts, Cuts::kRows);
  EXPECT_EQ(even.cuts, Cuts::kEqual);
  EXPECT_EQ(rows.most_ranges, 4u * 12);  // of a block
  EXPECT_EQ(even.most_ranges, 4u);
}

TEST(Ragged, IsBalancedAndNoOwnerHoldsAUnitUp) {
  for (const Gpt2Size size : {GPT2_SIZE_SMALL, GPT2_SIZE_MEDIUM, GPT2_SIZE_LARGE, GPT2_SIZE_XL}) {
    const Inventory inventory = Gpt2Of(size);
    for (const uint32_t shards : {2, 3, 4, 8, 64, 1024}) {
      SCOPED_TRACE(absl::StrCat(Gpt2Size_Name(size), " on ", shards));
      const PartitionTable table = Ragged(inventory, Weighting(shards, 1));
      ASSERT_TRUE(Check(table, inventory).ok());
      const Explanation e = Explain(table, inventory);
      EXPECT_LE(e.over_mean, 1.02);
      EXPECT_LE(Explain(RaggedInRuns(inventory, Weighting(shards, 1)), inventory).over_mean, 1.02);
      for (const UnitExplanation& unit : e.units) {
        EXPECT_TRUE(unit.bytes < 4096 * shards || unit.over <= 1.06) << unit.unit << " " << unit.over;
      }
      EXPECT_LE(e.most_ranges, shards);
    }
  }
}

TEST(Ragged, OddWidthsAreBalancedToo) {
  for (uint32_t width = 60; width < 100; ++width) {
    const Inventory inventory = OddGpt2(5, width, 3 * width + 1);
    for (const uint32_t shards : {2, 3, 5, 8}) {
      const Explanation e = Explain(Ragged(inventory, Weighting(shards, 1)), inventory);
      EXPECT_LE(e.over_mean, 1.02) << width << " wide on " << shards;
      for (const UnitExplanation& unit : e.units) {
        EXPECT_TRUE(unit.bytes < 4096 * shards || unit.over <= 1.1) << unit.unit << " " << unit.over << ", " << width;
      }
    }
  }
}

TEST(Ragged, SharesFollowTheMemory) {
  const Inventory inventory = Gpt2Of(GPT2_SIZE_LARGE);
  const uint64_t large = 80'000'000'000, small = 40'000'000'000;
  for (const Weighting& weights : {Weighting{large, small}, Weighting{small, large, large, small},
                                   Weighting{large, large, large, large, small, small, small, small}}) {
    uint64_t sum = 0;
    for (const uint64_t w : weights) sum += w;
    for (const PartitionTable& table : {Ragged(inventory, weights), RaggedInRuns(inventory, weights)}) {
      ASSERT_TRUE(Check(table, inventory).ok());
      const Explanation e = Explain(table, inventory, weights);
      const double total = 4.0 * static_cast<double>(FlatElements(inventory));
      for (size_t s = 0; s < weights.size(); ++s) {
        const double due = total * static_cast<double>(weights[s]) / static_cast<double>(sum);
        EXPECT_NEAR(static_cast<double>(e.bytes[s]) / due, 1, 0.02) << "shard " << s << " of " << weights.size();
      }
      EXPECT_LE(e.over_share, 1.02);
      EXPECT_GT(e.over_mean, 1.3);
    }
  }
}

TEST(Ragged, IsCutBetweenRowsAndSmallTensorsStayWhole) {
  const Inventory inventory = Gpt2Of(GPT2_SIZE_SMALL);
  const PartitionTable table = Ragged(inventory, Weighting(8, 1));
  for (const OwnedUnit& unit : OwnedUnits(table, inventory)) {
    for (const OwnedRange& range : unit.ranges) {
      for (const FlatTensor& t : unit.flat.tensors) {
        if (range.begin > t.begin && range.begin < t.begin + t.elements) {
          EXPECT_EQ((range.begin - t.begin) % 768, 0u) << t.name;
          EXPECT_TRUE(t.decay) << t.name;
        }
      }
    }
  }
}

TEST(Ragged, SmallUnitsHaveFewOwners) {
  const Inventory inventory = Gpt2Of(GPT2_SIZE_SMALL);
  const Explanation e = Explain(Ragged(inventory, Weighting(64, 1)), inventory);
  EXPECT_EQ(e.units.back().owners, 1u);  // the head: two vectors of 768
}

TEST(Weights, AreTheLeastMemoryOfAShardsRanks) {
  EXPECT_EQ(Weights({}, 2), (Weighting{1, 1}));
  EXPECT_EQ(Weights(std::vector<RankPlace>{{0, 80}, {0, 0}}, 2), (Weighting{1, 1})) << "not all are known";
  EXPECT_EQ(Weights(std::vector<RankPlace>{{0, 80}, {0, 40}, {1, 60}, {1, 50}}, 2), (Weighting{60, 40}));
}

RankPlace Fast(double flops_per_second, uint64_t most_elements = 0) {
  return {.flops_per_second = flops_per_second, .most_elements = most_elements};
}

TEST(Weights, BySpeed) {
  const auto by_speed = [](const std::vector<RankPlace>& ranks, uint32_t shards) {
    return Weights(ranks, shards, SHARES_SPEED, 1000);
  };
  EXPECT_EQ(by_speed({Fast(0), Fast(0)}, 2), (Weighting{500, 500})) << "none is known";
  EXPECT_EQ(by_speed({Fast(3e9), Fast(1e9)}, 2), (Weighting{750, 250}));
  EXPECT_EQ(by_speed({Fast(3e9), Fast(0), Fast(1e9)}, 3), (Weighting{500, 333, 166})) << "unknown is the mean";
  EXPECT_EQ(by_speed({Fast(3e9), Fast(1e9), Fast(1e9), Fast(5e9)}, 2), (Weighting{500, 500})) << "the slowest replica";
  EXPECT_EQ(by_speed({Fast(8e9, 200), Fast(1e9), Fast(1e9)}, 3), (Weighting{200, 400, 400}));
  EXPECT_EQ(by_speed({Fast(8e9, 200), Fast(1e9, 300), Fast(1e9)}, 3), (Weighting{200, 300, 500})) << "in two turns";
  EXPECT_EQ(by_speed({Fast(8e9, 100), Fast(1e9, 300)}, 2), (Weighting{100, 300})) << "no room for all";
}

// All elements are assigned, no shard exceeds its bound, and shards below their bound have shares in proportion to
// speed.
TEST(Weights, BySpeedWithBoundsAnyhow) {
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    const uint32_t shards = 1 + static_cast<uint32_t>(random() % 9);
    constexpr uint64_t kElements = 10'000'000;
    std::vector<RankPlace> ranks;
    uint64_t room = 0;
    for (uint32_t s = 0; s < shards; ++s) {
      const bool bound = random() % 2 == 0;
      const uint64_t most = 1 + random() % (3 * kElements / shards);
      ranks.push_back(Fast(1e9 * static_cast<double>(1 + random() % 50), bound ? most : 0));
      room += bound ? most : kElements;
    }
    const Weighting shares = Weights(ranks, shards, SHARES_SPEED, kElements);
    uint64_t sum = 0;
    double rate = 0;
    for (uint32_t s = 0; s < shards; ++s) {
      sum += shares[s];
      const uint64_t most = ranks[s].most_elements;
      EXPECT_LE(shares[s], most == 0 ? kElements : most);
      if (shares[s] == most) continue;
      const double here = static_cast<double>(shares[s]) / ranks[s].flops_per_second;
      EXPECT_NEAR(rate == 0 ? 1 : here / rate, 1, 1e-3) << "round " << round;
      rate = here;
    }
    EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(std::min(room, kElements)), shards) << "round " << round;
  }
}

TEST(Place, FollowsTheSpec) {
  const Inventory inventory = Gpt2Of(GPT2_SIZE_TINY);
  const std::vector<RankPlace> ranks{{0, 80}, {0, 40}};
  const auto same = [](const PartitionTable& a, const PartitionTable& b) { return TableSha256(a) == TableSha256(b); };
  EXPECT_TRUE(same(Place(PLACEMENT_EVEN, false, inventory, 2, ranks), Even(inventory, 2)));
  EXPECT_TRUE(same(Place(PLACEMENT_ROWS, false, inventory, 2, ranks), Rows(inventory, 2)));
  EXPECT_TRUE(same(Place(PLACEMENT_WHOLE, false, inventory, 2, ranks), WholeTensors(inventory, 2)));
  EXPECT_TRUE(same(Place(PLACEMENT_WHOLE, true, inventory, 2, ranks), WholeTensorsInRuns(inventory, 2)));
  EXPECT_TRUE(same(Place(PLACEMENT_RAGGED, false, inventory, 2, ranks), Ragged(inventory, Weighting{80, 40})));
  EXPECT_TRUE(same(Place(PLACEMENT_RAGGED, true, inventory, 2, ranks), RaggedInRuns(inventory, Weighting{80, 40})));
  const std::vector<RankPlace> uneven{Fast(1e9), Fast(3e9)};
  const Explanation e =
      Explain(Place(PLACEMENT_RAGGED, false, inventory, 2, uneven, SHARES_SPEED), inventory, Weighting{1, 3});
  EXPECT_LE(e.over_share, 1.02);
}

TEST(Explain, InWords) {
  const Inventory inventory = Gpt2Of(GPT2_SIZE_SMALL);
  const std::string one = absl::StrJoin(Lines(Explain(Replicated(inventory), inventory)), "\n");
  EXPECT_EQ(one, "1 shard owns 475 MiB of parameters");
  const std::string ragged = absl::StrJoin(Lines(Explain(Ragged(inventory, Weighting(4, 1)), inventory)), "\n");
  EXPECT_TRUE(absl::StrContains(ragged, "4 shards own ")) << ragged;
  EXPECT_TRUE(absl::StrContains(ragged, "most uneven unit: shard ")) << ragged;
  EXPECT_TRUE(absl::StrContains(ragged, "wte.weight (4 parts)")) << ragged;
  EXPECT_TRUE(absl::StrContains(ragged, "12 × h.*.mlp.c_fc.weight (2 parts)")) << ragged;
  EXPECT_TRUE(absl::StrContains(ragged, "\nthe all-gather of a unit has at most 4 ranges, one per owner\n")) << ragged;
  const std::string rows = absl::StrJoin(Lines(Explain(Rows(inventory, 4), inventory)), "\n");
  EXPECT_TRUE(absl::StrContains(rows, "\nthe all-gather of a unit has up to 48 ranges, ")) << rows;
  EXPECT_TRUE(absl::EndsWith(rows, "\n148 of 148 tensors are split between shards, each by its own rows")) << rows;
  const std::string even = absl::StrJoin(Lines(Explain(Even(inventory, 4), inventory)), "\n");
  EXPECT_TRUE(absl::EndsWith(even, " of 148 tensors are split between shards: each unit is divided into equal parts"))
      << even;
  const std::string runs = absl::StrJoin(Lines(Explain(RaggedInRuns(inventory, Weighting(4, 1)), inventory)), "\n");
  EXPECT_TRUE(
      absl::StrContains(runs, "split, because larger than any shard's part of the unit: wte.weight (2 parts)\n"))
      << runs;
  EXPECT_TRUE(
      absl::EndsWith(runs, "split, because larger than what was left of a share: h.7.mlp.c_fc.weight (2 parts)"))
      << runs;
  const std::string whole = absl::StrJoin(Lines(Explain(WholeTensors(inventory, 4), inventory)), "\n");
  EXPECT_TRUE(absl::EndsWith(whole, "\n0 of 148 tensors are split between shards")) << whole;
  const Weighting mixed{80, 40};
  const std::string memory = absl::StrJoin(Lines(Explain(Ragged(inventory, mixed), inventory, mixed)), "\n");
  EXPECT_TRUE(absl::StrContains(memory, "× its share of the memory")) << memory;
}

}  // namespace
}  // namespace muster::partition
