#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "models/inventory.h"
#include "strategies/partition/flat.h"
#include "strategies/partition/planners.h"
#include "strategies/partition/table.h"

namespace muster::partition {
namespace {

Inventory Tiny() {
  Model model;
  model.mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  return *models::MakeInventory(model);
}

TEST(Flat, TensorsAreAlignedApartAndGrouped) {
  Model model;
  Gpt2& g = *model.mutable_gpt2();  // odd widths: nothing divides
  g.set_layers(3), g.set_heads(1), g.set_width(37), g.set_vocabulary(101), g.set_context(19);
  const Inventory inventory = *models::MakeInventory(model);
  for (const Unit& unit : inventory.units()) {
    const FlatUnit flat = Flatten(unit);
    uint64_t end = 0, elements = 0;
    bool decay = true;
    for (const FlatTensor& t : flat.tensors) {
      EXPECT_EQ(t.begin % kAlignElements, 0u);
      EXPECT_GE(t.begin, end);
      EXPECT_LT(t.begin - end, kAlignElements);
      EXPECT_TRUE(decay || !t.decay) << "tensors with decay come first";
      decay = t.decay;
      end = t.begin + t.elements;
      elements += t.elements;
    }
    EXPECT_EQ(flat.tensors.size(), static_cast<size_t>(unit.tensors_size()));
    EXPECT_GE(flat.elements, end);
    EXPECT_EQ(flat.elements % kAlignElements, 0u);
  }
}

// By element: the shard that owns it.
std::vector<uint32_t> OwnersOf(const OwnedUnit& unit) {
  std::vector<uint32_t> owners;
  for (const OwnedRange& range : unit.ranges) {
    EXPECT_EQ(range.begin, owners.size());
    owners.resize(range.end, range.shard);
  }
  EXPECT_EQ(owners.size(), unit.flat.elements);
  return owners;
}

std::vector<PartitionTable> EveryTable(const Inventory& inventory, uint32_t shards) {
  std::vector<RankPlace> places(shards);
  for (uint32_t s = 0; s < shards; ++s) places[s].memory_bytes = (s + 1) << 30;
  std::vector<PartitionTable> tables;
  for (const Placement placement : {PLACEMENT_EVEN, PLACEMENT_ROWS, PLACEMENT_WHOLE, PLACEMENT_RAGGED}) {
    for (const bool in_runs : {false, true}) tables.push_back(Place(placement, in_runs, inventory, shards, places));
  }
  tables.push_back(Replicated(inventory));
  return tables;
}

// Each trained element keeps its owner, whatever the table and whatever is frozen.
TEST(TrainedPart, KeepsTheOwnerOfEachElement) {
  std::mt19937 random(7);
  Model model;
  Gpt2& g = *model.mutable_gpt2();  // odd widths: nothing divides
  g.set_layers(2), g.set_heads(1), g.set_width(13), g.set_vocabulary(31), g.set_context(7);
  for (int round = 0; round < 12; ++round) {
    Inventory inventory = *models::MakeInventory(model);
    for (Unit& unit : *inventory.mutable_units()) {
      const uint32_t chance = random() % 4;  // in three: none, some, most, all
      for (Tensor& tensor : *unit.mutable_tensors()) tensor.set_frozen(random() % 3 < chance);
    }
    for (const uint32_t shards : {1u, 2u, 3u, 5u}) {
      for (const PartitionTable& table : EveryTable(inventory, shards)) {
        ASSERT_EQ(Check(table, inventory), absl::OkStatus());
        std::vector<uint64_t> by_shard(table.shards());
        for (int u = 0; u < inventory.units_size(); ++u) {
          const OwnedUnit unit = OwnedUnitOf(table, inventory, u), trained = TrainedPart(unit);
          const std::vector<uint32_t> all = OwnersOf(unit), ours = OwnersOf(trained);
          size_t t = 0;
          for (const FlatTensor& tensor : unit.flat.tensors) {
            if (tensor.frozen) continue;
            const FlatTensor& part = trained.flat.tensors.at(t++);
            EXPECT_EQ(part.name, tensor.name);
            EXPECT_EQ(part.begin % kAlignElements, 0u);
            for (uint64_t i = 0; i < tensor.elements; ++i) {
              ASSERT_EQ(ours.at(part.begin + i), all.at(tensor.begin + i)) << tensor.name << " " << i;
            }
          }
          EXPECT_EQ(t, trained.flat.tensors.size());
          for (const uint32_t owner : ours) ++by_shard[owner];
        }
        EXPECT_EQ(TrainedElements(table, inventory), by_shard);
      }
    }
  }
}

TEST(TrainedPart, IsTheUnitWhereNothingIsFrozen) {
  const Inventory inventory = Tiny();
  const PartitionTable table = Even(inventory, 3);
  for (int u = 0; u < inventory.units_size(); ++u) {
    const OwnedUnit unit = OwnedUnitOf(table, inventory, u), trained = TrainedPart(unit);
    EXPECT_EQ(trained.ranges, unit.ranges);
    EXPECT_EQ(trained.flat.elements, unit.flat.elements);
  }
}

// As FSDP's own point: no rank has more of the optimizer's work than its share.
TEST(TrainedPart, EvenCutsWhatIsTrainedAndWhatIsFrozenEqually) {
  Train train;
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  train.mutable_lora()->set_rank(8);
  train.mutable_lora()->set_alpha(8);
  const Inventory inventory = *models::MakeInventory(train);
  for (const uint32_t shards : {2u, 3u, 7u}) {
    const PartitionTable table = Even(inventory, shards);
    const std::vector<uint64_t> all = OwnedElements(table, inventory), trained = TrainedElements(table, inventory);
    const uint64_t units = static_cast<uint64_t>(inventory.units_size());
    for (const std::vector<uint64_t>& elements : {all, trained}) {
      const auto [least, most] = std::minmax_element(elements.begin(), elements.end());
      EXPECT_LE(*most - *least, 2 * shards * kAlignElements * units) << shards;
    }
    EXPECT_GT(trained[0], 0u);
    const std::vector<bool> even = EvenUnits(table, inventory);
    EXPECT_TRUE(even[0]) << "the embedding is frozen as a whole";
    EXPECT_FALSE(even[1]);
  }
}

TEST(Table, ReplicatedIsWhole) { EXPECT_TRUE(Check(Replicated(Tiny()), Tiny()).ok()); }

TEST(Table, EveryMistakeIsRefused) {
  struct Case {
    std::string what;
    std::function<void(PartitionTable&)> spoil;
  };
  const auto extent = [](PartitionTable& t) { return t.mutable_units(1)->mutable_pieces(2)->mutable_extents(0); };
  for (const Case& c : std::vector<Case>{
           {"units", [](PartitionTable& t) { t.mutable_units()->RemoveLast(); }},
           {"here", [](PartitionTable& t) { t.mutable_units(1)->set_unit("x"); }},
           {"missing", [](PartitionTable& t) { t.mutable_units(1)->mutable_pieces()->RemoveLast(); }},
           {"twice", [](PartitionTable& t) { *t.mutable_units(1)->add_pieces() = t.units(1).pieces(0); }},
           {"unknown", [](PartitionTable& t) { t.mutable_units(1)->mutable_pieces(0)->set_tensor("x"); }},
           {"hole", [&](PartitionTable& t) { extent(t)->set_begin(1); }},
           {"covers", [&](PartitionTable& t) { extent(t)->set_length(extent(t)->length() - 1); }},
           {"covers", [&](PartitionTable& t) { extent(t)->set_length(extent(t)->length() + 1); }},
           {"shard 1", [&](PartitionTable& t) { extent(t)->set_shard(1); }},
           {"overlap", [&](PartitionTable& t) { *t.mutable_units(1)->mutable_pieces(2)->add_extents() = *extent(t); }},
       }) {
    PartitionTable table = Replicated(Tiny());
    c.spoil(table);
    const absl::Status status = Check(table, Tiny());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.what;
    EXPECT_TRUE(absl::StrContains(status.message(), c.what)) << status;
    EXPECT_NE(TableSha256(table), TableSha256(Replicated(Tiny())));
  }
}

}  // namespace
}  // namespace muster::partition
