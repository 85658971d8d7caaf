#include "models/box.h"

#include <gtest/gtest.h>

#include <vector>

namespace muster::models {
namespace {

// Share 1 of 2 of [2, 3, 4, 2], cut along the axis of 4: of each of 2 x 3 rows of 8 elements the last 4.
TEST(FlatBox, IsARunInEachRow) {
  Tensor tensor;
  for (const uint64_t n : {2, 3, 4, 2}) tensor.mutable_box()->add_view(n);
  tensor.mutable_box()->set_axis(2), tensor.mutable_box()->set_begin(2), tensor.mutable_box()->set_size(2);
  const FlatBox box = FlatBoxOf(tensor);
  EXPECT_FALSE(box.whole());
  std::vector<uint64_t> places;
  for (uint64_t e = 0; e < 24; ++e) places.push_back(box.Whole(e));
  EXPECT_EQ(places, (std::vector<uint64_t>{4,  5,  6,  7,  12, 13, 14, 15, 20, 21, 22, 23,
                                           28, 29, 30, 31, 36, 37, 38, 39, 44, 45, 46, 47}));
  EXPECT_EQ(box.Left(0), 4u);
  EXPECT_EQ(box.Left(6), 2u);
  EXPECT_EQ(box.FirstFrom(0), 0u);
  EXPECT_EQ(box.FirstFrom(5), 1u);
  EXPECT_EQ(box.FirstFrom(8), 4u) << "the next row's";
  EXPECT_EQ(box.FirstFrom(47), 23u);
}

TEST(FlatBox, OfAMirroredTensorIsAllOfIt) {
  const FlatBox box = FlatBoxOf(Tensor());
  EXPECT_TRUE(box.whole());
  EXPECT_EQ(box.Whole(12345), 12345u);
  EXPECT_EQ(box.FirstFrom(12345), 12345u);
  EXPECT_GT(box.Left(12345), uint64_t{1} << 62);
}

}  // namespace
}  // namespace muster::models
