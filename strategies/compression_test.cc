#include "strategies/compression.h"

#include <gtest/gtest.h>

#include "models/inventory.h"

namespace muster::strategies {
namespace {

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
