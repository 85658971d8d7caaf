#include "data/images/prepare/resize.h"

#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/file/read_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/temporary_folder.h"

namespace muster::data {
namespace {

using ::testing::ElementsAre;

// Rows of equal pixels: `columns` are the values of the columns.
RgbImage Columns(const std::vector<uint8_t>& columns, uint32_t height) {
  RgbImage image{.width = static_cast<uint32_t>(columns.size()), .height = height};
  for (uint32_t y = 0; y < height; ++y) {
    for (const uint8_t value : columns) image.pixels.insert(image.pixels.end(), 3, value);
  }
  return image;
}

// The red values of the first row.
std::vector<int> FirstRow(const RgbImage& image) {
  std::vector<int> row;
  for (uint32_t x = 0; x < image.width; ++x) row.push_back(image.pixels[3 * x]);
  return row;
}

// By hand: the triangle around output pixel 0 has its center at 1 and reaches 2 pixels to each side, so the centers of
// the input pixels 0, 1 and 2 have the weights 3/4, 3/4 and 1/4 of 7/4: (3 * 0 + 3 * 70 + 140) / 7 = 50.
TEST(ResizeAndCrop, HalvesByATriangle) {
  const RgbImage half = ResizeAndCrop(Columns({0, 70, 140, 210}, 4), 2);
  EXPECT_EQ(half.width, 2u);
  EXPECT_EQ(half.height, 2u);
  EXPECT_THAT(FirstRow(half), ElementsAre(50, 160));
}

// By hand: between two centers the value changes linearly; outside of them it is constant.
TEST(ResizeAndCrop, DoublesLinearly) {
  EXPECT_THAT(FirstRow(ResizeAndCrop(Columns({0, 100}, 2), 4)), ElementsAre(0, 25, 75, 100));
}

TEST(ResizeAndCrop, KeepsAnImageOfTheRightSize) {
  const RgbImage image = Columns({1, 2, 200}, 3);
  EXPECT_EQ(ResizeAndCrop(image, 3).pixels, image.pixels);
}

TEST(ResizeAndCrop, TakesTheMiddleRoundedAsPythonDoes) {
  EXPECT_THAT(FirstRow(ResizeAndCrop(Columns({1, 2, 3, 4, 5}, 3), 3)), ElementsAre(2, 3, 4));
  EXPECT_THAT(FirstRow(ResizeAndCrop(Columns({1, 2, 3, 4}, 3), 3)), ElementsAre(1, 2, 3));              // 0.5 to 0
  EXPECT_THAT(FirstRow(ResizeAndCrop(Columns({1, 2, 3, 4, 5, 6}, 3), 3)), ElementsAre(3, 4, 5));        // 1.5 to 2
  EXPECT_THAT(FirstRow(ResizeAndCrop(Columns({1, 2, 3, 4, 5, 6, 7, 8}, 3), 3)), ElementsAre(3, 4, 5));  // 2.5 to 2
}

TEST(ResizeAndCrop, ALongSideCostsNothing) {
  const RgbImage square = ResizeAndCrop(Columns(std::vector<uint8_t>(1'000'000, 77), 1), 64);
  EXPECT_EQ(square.pixels, std::vector<uint8_t>(3 * 64 * 64, 77));
}

// Pillow comes with TensorBoard, which the peer environment has.
TEST(ResizeAndCrop, DecodesAndResizesAsPillow) {
  const char* python = getenv("MUSTER_PEER_PYTHON");
  ASSERT_NE(python, nullptr) << "MUSTER_PEER_PYTHON is not set: run ./test.sh, or tools/fetch_torch.sh peer and pass "
                                "--test_env=MUSTER_PEER_PYTHON=~/.cache/muster/peer/bin/python";
  const TemporaryFolder folder;
  std::FILE* pipe = popen(absl::StrCat(python, " data/images/prepare/pillow_peer.py ", folder.path()).c_str(), "r");
  std::string out(1 << 16, '\0');
  out.resize(fread(out.data(), 1, out.size(), pipe));
  ASSERT_EQ(pclose(pipe), 0) << out;
  int compared = 0;
  const std::vector<std::string> lines = absl::StrSplit(out, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');  // name, size
    const std::string path = folder.path() + "/" + words[0];
    const absl::StatusOr<RgbImage> image = DecodeImage(ReadWhole(path).value());
    ASSERT_TRUE(image.ok()) << words[0] << ": " << image.status();
    const RgbImage square = ResizeAndCrop(*image, static_cast<uint32_t>(std::stoi(words[1])));
    const std::string want = ReadWhole(path + ".rgb").value();
    ASSERT_EQ(square.pixels.size(), want.size()) << words[0];
    int farthest = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      farthest = std::max(farthest, std::abs(int{square.pixels[i]} - static_cast<uint8_t>(want[i])));
    }
    // Pillow brings its own libjpeg.
    EXPECT_LE(farthest, words[0].find(".jpg") == std::string::npos ? 0 : 1) << words[0];
    ++compared;
  }
  EXPECT_EQ(compared, 20);
}

}  // namespace
}  // namespace muster::data
