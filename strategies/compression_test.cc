#include "strategies/compression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"

namespace muster::strategies {
namespace {

using ::testing::ElementsAre;

Compression TopKOf(double ratio, SentValues values, uint64_t warm_up = 0) {
  Compression compression;
  TopK& top_k = *compression.mutable_top_k();
  top_k.set_ratio(ratio), top_k.set_values(values), top_k.set_warm_up_steps(warm_up);
  return compression;
}

// Lin et al. 2018, section 3.3: sparsity of 75%, 93.75%, 98.4375% and 99.6% in the first epochs, then 99.9%: the part
// that is sent falls to a quarter each time.
TEST(Compression, TheRatioWarmsUpExponentially) {
  const TopK top_k = TopKOf(0.25 / 256, SENT_VALUES_FP32, 4).top_k();
  const int64_t sent[] = {16384, 4096, 1024, 256, 64, 64};
  for (uint64_t step = 0; step < 6; ++step) EXPECT_EQ(SentElements(top_k, 65536, step), sent[step]) << step;
  EXPECT_EQ(SentElements(TopKOf(0.01, SENT_VALUES_FP32).top_k(), 30, 0), 1) << "at least one";
  EXPECT_EQ(SentElements(TopKOf(0.01, SENT_VALUES_FP32).top_k(), 0, 0), 0);
}

// 10,000 indices below a million: six lower bits each, an upper half of 10,000 + 15,625 + 1 bits; whole words.
TEST(Compression, MessagesHaveTheirSizes) {
  const uint64_t indices = 4 * (1 + 1875 + 801);
  EXPECT_EQ(BytesOf(TopKOf(0.01, SENT_VALUES_FP32), 1'000'000, {}, 4).first, indices + 40'000);
  EXPECT_EQ(BytesOf(TopKOf(0.01, SENT_VALUES_BF16), 1'000'000, {}, 4).first, indices + 20'000);
  EXPECT_EQ(BytesOf(TopKOf(0.01, SENT_VALUES_INT8), 1'000'000, {}, 4).first, indices + 10'000 + 40 * 4);
  EXPECT_EQ(SentBytes(TopKOf(0.01, SENT_VALUES_BF16), 1'000'000, {}, 4), 3 * (indices + 20'000));
  EXPECT_EQ(SentBytes(Compression(), 1'000'000, {}, 4), 6'000'000u) << "a ring: 2 times 3/4 of 4 MB";

  Compression int8;
  int8.mutable_int8()->set_block(256);
  // 250,000 elements of each rank are 977 blocks.
  EXPECT_EQ(BytesOf(int8, 1'000'000, {}, 4).second, 977u * 260);
  EXPECT_EQ(BytesOf(int8, 1'000'000, {}, 4).first, 4u * 977 * 260);
  EXPECT_EQ(SentBytes(int8, 1'000'000, {}, 4), 6u * 977 * 260);

  Compression power;
  power.mutable_power_sgd()->set_rank(4);
  // A matrix of 1000 x 500, a vector, and a matrix of 6 x 6, which two of 6 x 4 would not make smaller.
  const std::vector<GradientPart> parts = {{0, {1000, 500}}, {500'000, {70}}, {500'070, {6, 6}}};
  EXPECT_EQ(BytesOf(power, 500'106, parts, 4).first, 4u * (4 * 1000 + 70 + 36));
  EXPECT_EQ(BytesOf(power, 500'106, parts, 4).second, 4u * 4 * 500);
  EXPECT_EQ(ThinMatricesOf({0, {8, 3, 5, 5}}, 4)->columns, 75) << "a convolution";
  EXPECT_FALSE(ThinMatricesOf({0, {6, 6}}, 4).has_value());
  EXPECT_FALSE(ThinMatricesOf({0, {0, 6}}, 4).has_value());
}

TEST(RowsWithin, AreWholeOnes) {
  // Rows of ten elements begin at 100, 110, 120, 130.
  const GradientPart matrix{100, {4, 5, 2}};
  EXPECT_EQ(RowsWithin(matrix, 0, 200), matrix);
  EXPECT_EQ(RowsWithin(matrix, 100, 140), matrix);
  EXPECT_EQ(RowsWithin(matrix, 101, 139), (GradientPart{110, {2, 5, 2}}));
  EXPECT_EQ(RowsWithin(matrix, 110, 140), (GradientPart{110, {3, 5, 2}}));
  EXPECT_EQ(RowsWithin(matrix, 90, 111), (GradientPart{100, {1, 5, 2}}));
  for (const auto& [begin, end] : {std::pair(0, 100), {0, 109}, {101, 119}, {131, 200}, {140, 200}, {50, 60}}) {
    EXPECT_FALSE(RowsWithin(matrix, begin, end).has_value()) << begin << " to " << end;
  }
  // A share of it begins before the range.
  EXPECT_EQ(RowsWithin({-25, {4, 10}}, 0, 100), (GradientPart{5, {1, 10}}));
  EXPECT_EQ(RowsWithin({3, {7}}, 5, 8), (GradientPart{5, {3}}));
  EXPECT_FALSE(RowsWithin({3, {0, 7}}, 0, 100).has_value());
}

// Two units of a matrix of 10 x 8 and a vector of 8 each: 96 elements with the padding after the vector.
TEST(SummedRanges, AreOfAnOpOrOfEachUnit) {
  Inventory inventory;
  for (const char* name : {"a", "b"}) {
    Unit& unit = *inventory.add_units();
    unit.set_name(name);
    Tensor& matrix = *unit.add_tensors();
    matrix.set_name(absl::StrCat(name, ".m")), matrix.add_shape(10), matrix.add_shape(8);
    Tensor& vector = *unit.add_tensors();
    vector.set_name(absl::StrCat(name, ".v")), vector.add_shape(8);
  }
  const auto table = [&](const std::vector<uint64_t>& boundaries) {
    PartitionTable table;
    table.set_shards(static_cast<uint32_t>(boundaries.size()) - 1);
    for (const Unit& unit : inventory.units()) {
      UnitPartition& of = *table.add_units();
      of.set_unit(unit.name());
      of.mutable_boundaries()->Add(boundaries.begin(), boundaries.end());
    }
    return table;
  };
  const Op op{.kind = OpKind::kAllReduce, .unit = 0, .unit_end = 2};
  const auto ranges = [&](const std::vector<uint64_t>& boundaries, uint32_t inside, uint32_t place) {
    return SummedRanges(table(boundaries), inventory, op, inside, place);
  };
  // One owner: all in one.
  const auto whole = ranges({0, 96}, 1, 0);
  ASSERT_EQ(whole.size(), 1u);
  ASSERT_EQ(whole[0].size(), 1u);
  EXPECT_EQ(whole[0][0].elements, 192);
  EXPECT_THAT(whole[0][0].parts, ElementsAre(GradientPart{0, {10, 8}}, GradientPart{80, {8}}, GradientPart{96, {10, 8}},
                                             GradientPart{176, {8}}));
  // Among two replicas of a node, and among three: vectors of 16 elements.
  const auto second = ranges({0, 96}, 2, 1);
  EXPECT_EQ(second[0][0].elements, 96);
  EXPECT_THAT(second[0][0].parts, ElementsAre(GradientPart{0, {10, 8}}, GradientPart{80, {8}}));
  const auto middle = ranges({0, 96}, 3, 1);  // elements 64 to 128
  EXPECT_EQ(middle[0][0].elements, 64);
  EXPECT_THAT(middle[0][0].parts,
              ElementsAre(GradientPart{0, {2, 8}}, GradientPart{16, {8}}, GradientPart{32, {4, 8}}));
  // Two owners: units by themselves.
  const auto shards = ranges({0, 48, 96}, 1, 0);
  ASSERT_EQ(shards.size(), 2u);
  ASSERT_EQ(shards[1].size(), 2u);
  for (const SummedRange& range : shards[1]) {
    EXPECT_EQ(range.elements, 48);
    EXPECT_THAT(range.parts, ElementsAre(GradientPart{0, {4, 8}}, GradientPart{32, {8}}));
  }
}

TEST(Compression, TheUpdateHasNoMomentumThatWasApplied) {
  Train train;
  train.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  EXPECT_EQ(AppliedOptimizer(train, true).sgd().momentum(), 0.9);
  *train.mutable_communication()->mutable_compression() = TopKOf(0.01, SENT_VALUES_FP32);
  train.mutable_communication()->mutable_compression()->mutable_top_k()->set_momentum_correction(true);
  EXPECT_EQ(AppliedOptimizer(train, true).sgd().momentum(), 0);
  EXPECT_EQ(AppliedOptimizer(train, false).sgd().momentum(), 0.9) << "a rank alone sums nothing";
}

TEST(Compression, NamesItself) {
  EXPECT_EQ(NameOf(TopKOf(0.001, SENT_VALUES_INT8)), "top_k 1/1000 in int8");
  EXPECT_EQ(NameOf(Compression()), "none");
}

}  // namespace
}  // namespace muster::strategies
