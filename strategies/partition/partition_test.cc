#include <gtest/gtest.h>

#include <functional>

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
