#include "data/images/image_batch.h"

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SampleOrder OrderOf(uint64_t images, DataOrder order, uint64_t seed = 1) {
  return SampleOrder({.samples = images, .order = order, .seed = seed});
}

TEST(SampleOrder, SequentialWrapsAround) {
  const SampleOrder order = OrderOf(3, DATA_ORDER_SEQUENTIAL);
  std::vector<uint64_t> indices;
  for (uint64_t k = 0; k < 7; ++k) indices.push_back(order.Index(k));
  EXPECT_THAT(indices, ElementsAre(0, 1, 2, 0, 1, 2, 0));
}

TEST(SampleOrder, AnEpochTakesEachImageOnceAndEpochsAndSeedsDiffer) {
  for (const uint64_t images : {1, 2, 3, 10, 257, 1000}) {
    std::set<std::vector<uint64_t>> orders;
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      const SampleOrder order = OrderOf(images, DATA_ORDER_SHUFFLED, seed);
      ASSERT_EQ(order.samples_per_epoch(), images);
      for (uint64_t epoch = 0; epoch < 5; ++epoch) {
        std::vector<uint64_t> indices;
        for (uint64_t k = epoch * images; k < (epoch + 1) * images; ++k) indices.push_back(order.Index(k));
        EXPECT_EQ(std::set<uint64_t>(indices.begin(), indices.end()).size(), images);
        EXPECT_LT(*std::max_element(indices.begin(), indices.end()), images);
        orders.insert(indices);
      }
    }
    if (images >= 257) {
      EXPECT_EQ(orders.size(), 10u) << images;
    }
  }
}

// Resumed jobs of other versions depend on it: a change here is a change of the checkpoint format.
TEST(SampleOrder, StaysWhatItWas) {
  const SampleOrder order = OrderOf(50'000, DATA_ORDER_SHUFFLED, 1);
  std::vector<uint64_t> indices;
  for (uint64_t k : {0, 1, 49'999, 50'000, 123'456}) indices.push_back(order.Index(k));
  EXPECT_THAT(indices, ElementsAre(41418, 21783, 33098, 33421, 30659));
  const Crop crop = DrawCrop({.crop_padding = 4, .flip = true}, 1, 123'456);
  EXPECT_EQ(std::tuple(crop.top, crop.left, crop.flip), std::tuple(6u, 7u, false));
}

// 81 offsets, twice: each within 5 standard deviations of its expected count.
TEST(DrawCrop, TakesEveryOffsetAndBothSidesEquallyOften) {
  std::map<std::tuple<uint32_t, uint32_t, bool>, int> counts;
  constexpr int kSamples = 162'000;
  for (int k = 0; k < kSamples; ++k) {
    const Crop crop = DrawCrop({.crop_padding = 4, .flip = true}, /*seed=*/7, k);
    ++counts[{crop.top, crop.left, crop.flip}];
  }
  EXPECT_EQ(counts.size(), 162u);
  for (const auto& [crop, count] : counts) {
    EXPECT_LE(std::get<0>(crop), 8u);
    EXPECT_LE(std::get<1>(crop), 8u);
    EXPECT_NEAR(count, 1000, 5 * 31.6);
  }
}

TEST(DrawCrop, NothingIsDrawnWithoutAugmentation) {
  for (uint64_t k = 0; k < 100; ++k) {
    const Crop crop = DrawCrop({}, 1, k);
    EXPECT_EQ(std::tuple(crop.top, crop.left, crop.flip), std::tuple(0u, 0u, false));
  }
}

class ImageBatchTest : public ::testing::Test {
 protected:
  ImageBatchTest() {
    std::string pattern = absl::StrCat(::testing::TempDir(), "/batch.XXXXXX");
    folder_ = mkdtemp(pattern.data());
  }
  ~ImageBatchTest() override { std::filesystem::remove_all(folder_); }

  // Images of 2 x 5 x 4 pixels, all of them different for the first 12 images; the label of image i is i.
  ImageFile Make(uint64_t images) {
    const ImageSidecar sidecar{.images = images, .channels = 2, .height = 5, .width = 4, .classes = images};
    std::ofstream(folder_ + "/i.bin.json") << ToJson(sidecar);
    std::ofstream out(folder_ + "/i.bin", std::ios::binary);
    for (uint64_t i = 0; i < images; ++i) {
      out.put(static_cast<char>(i));
      for (int at = 0; at < 40; ++at) out.put(static_cast<char>(PixelOf(i, at)));
    }
    out.close();
    return ImageFile::Open(folder_ + "/i.bin").value();
  }
  static uint8_t PixelOf(uint64_t image, int at) { return static_cast<uint8_t>(image * 41 + at * 7 + 3); }

  std::string folder_;
};

// Pads, cuts and mirrors step by step, as one would on paper.
std::vector<float> Obvious(const std::vector<uint8_t>& image, int channels, int height, int width, int padding,
                           const Crop& crop, const Normalization& normalization) {
  std::vector<float> result;
  for (int c = 0; c < channels; ++c) {
    std::vector<std::vector<int>> padded(height + 2 * padding, std::vector<int>(width + 2 * padding, 0));
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) padded[y + padding][x + padding] = image[(c * height + y) * width + x];
    }
    for (int y = 0; y < height; ++y) {
      const std::vector<int>& row = padded[crop.top + y];
      std::vector<int> cut(row.begin() + crop.left, row.begin() + crop.left + width);
      if (crop.flip) std::reverse(cut.begin(), cut.end());
      for (const int value : cut) {
        const float scaled = static_cast<float>(value) / 255.0f;
        result.push_back((scaled - normalization.mean[c]) / normalization.standard_deviation[c]);
      }
    }
  }
  return result;
}

TEST_F(ImageBatchTest, CropsAreThoseOfPaddedArrays) {
  const ImageFile file = Make(12);
  const SampleOrder order = OrderOf(12, DATA_ORDER_SHUFFLED, 5);
  const Normalization normalization{{0.5f, 0.25f}, {0.125f, 0.3f}};
  constexpr uint64_t kSamples = 1500;
  for (const uint32_t padding : {0, 1, 3}) {
    const Augmentation augmentation{.crop_padding = padding, .flip = true};
    std::vector<float> pixels;
    std::vector<int64_t> labels;
    ASSERT_TRUE(ReadImages(file, order, augmentation, normalization, 7, kSamples, pixels, labels).ok());
    ASSERT_EQ(pixels.size(), kSamples * 40);
    ASSERT_EQ(labels.size(), kSamples);
    std::set<std::tuple<uint32_t, uint32_t, bool>> drawn;
    for (uint64_t i = 0; i < kSamples; ++i) {
      const uint64_t image = order.Index(7 + i);
      std::vector<uint8_t> bytes;
      for (int at = 0; at < 40; ++at) bytes.push_back(PixelOf(image, at));
      const Crop crop = DrawCrop(augmentation, 5, 7 + i);
      drawn.insert({crop.top, crop.left, crop.flip});
      EXPECT_EQ(labels[i], static_cast<int64_t>(image));
      EXPECT_EQ(std::vector<float>(pixels.begin() + i * 40, pixels.begin() + (i + 1) * 40),
                Obvious(bytes, 2, 5, 4, padding, crop, normalization))
          << "sample " << 7 + i << " at " << crop.top << ", " << crop.left << ", " << crop.flip;
    }
    EXPECT_EQ(drawn.size(), 2 * (2 * padding + 1) * (2 * padding + 1)) << "every crop was compared";
  }
}

// By hand: (0 / 255 - 0.5) / 0.25 = -2, (255 / 255 - 0.5) / 0.25 = 2, (51 / 255 - 0.5) / 0.25 = -1.2.
TEST_F(ImageBatchTest, NormalizesAndPadsWithBlack) {
  const ImageSidecar sidecar{.images = 1, .channels = 1, .height = 2, .width = 2, .classes = 2};
  std::ofstream(folder_ + "/n.bin.json") << ToJson(sidecar);
  std::ofstream(folder_ + "/n.bin", std::ios::binary) << std::string("\x01\xff\x33\x33\x33", 5);
  const ImageFile file = ImageFile::Open(folder_ + "/n.bin").value();
  const SampleOrder order = OrderOf(1, DATA_ORDER_SEQUENTIAL);
  std::vector<float> pixels;
  std::vector<int64_t> labels;
  ASSERT_TRUE(ReadImages(file, order, {}, {}, 0, 1, pixels, labels).ok());
  EXPECT_THAT(pixels, ElementsAre(1.0f, 0.2f, 0.2f, 0.2f));
  EXPECT_THAT(labels, ElementsAre(1));
  const Normalization normalization{{0.5f}, {0.25f}};
  ASSERT_TRUE(ReadImages(file, order, {}, normalization, 0, 1, pixels, labels).ok());
  EXPECT_FLOAT_EQ(pixels[0], 2.0f);
  EXPECT_FLOAT_EQ(pixels[1], -1.2f);
  // The crop at (0, 0) of the padded 4 x 4 image is black but for its lower right corner.
  uint64_t k = 0;
  for (; k < 1000; ++k) {
    const Crop crop = DrawCrop({.crop_padding = 1}, 1, k);
    if (crop.top == 0 && crop.left == 0) break;
  }
  ASSERT_TRUE(ReadImages(file, order, {.crop_padding = 1}, normalization, k, 1, pixels, labels).ok());
  EXPECT_THAT(pixels, ElementsAre(-2.0f, -2.0f, -2.0f, 2.0f));
}

TEST_F(ImageBatchTest, SamplesDoNotDependOnHowTheyAreBatched) {
  const ImageFile file = Make(9);
  const Augmentation augmentation{.crop_padding = 2, .flip = true};
  for (const DataOrder kind : {DATA_ORDER_SHUFFLED, DATA_ORDER_SEQUENTIAL}) {
    const SampleOrder order = OrderOf(9, kind, 3);
    std::vector<float> all, part;
    std::vector<int64_t> labels, part_labels;
    ASSERT_TRUE(ReadImages(file, order, augmentation, {}, 20, 30, all, labels).ok());
    for (const auto& [first, count] : std::vector<std::pair<int, int>>{{20, 1}, {25, 7}, {49, 1}, {30, 0}}) {
      ASSERT_TRUE(ReadImages(file, order, augmentation, {}, first, count, part, part_labels).ok());
      EXPECT_EQ(part, std::vector<float>(all.begin() + (first - 20) * 40, all.begin() + (first - 20 + count) * 40));
      EXPECT_EQ(part_labels,
                std::vector<int64_t>(labels.begin() + (first - 20), labels.begin() + (first - 20 + count)));
    }
    // The same image in the next epochs: other crops.
    std::set<std::vector<float>> versions;
    for (uint64_t k = 0; k < 9 * 10; ++k) {
      if (order.Index(k) != 4) continue;
      ASSERT_TRUE(ReadImages(file, order, augmentation, {}, k, 1, part, part_labels).ok());
      EXPECT_THAT(part_labels, ElementsAre(4));
      versions.insert(part);
    }
    EXPECT_GT(versions.size(), 6u);  // of 10 draws of 50
  }
}

TEST_F(ImageBatchTest, MeasuresMeanAndDeviation) {
  const ImageSidecar sidecar{.images = 2, .channels = 2, .height = 1, .width = 2, .classes = 2};
  std::ofstream(folder_ + "/m.bin.json") << ToJson(sidecar);
  std::ofstream(folder_ + "/m.bin", std::ios::binary) << std::string("\x01\x00\xff\x33\x33\x00\x00\xff\x33\x33", 10);
  const Normalization measured = Measure(ImageFile::Open(folder_ + "/m.bin").value()).value();
  EXPECT_THAT(measured.mean, ElementsAre(0.5f, 0.2f));
  EXPECT_FLOAT_EQ(measured.standard_deviation[0], 0.5f);
  EXPECT_NEAR(measured.standard_deviation[1], 0, 1e-6);
  EXPECT_FALSE(CheckNormalization({{0.5f, 0.2f}, {0.5f, 0.0f}}, 2).ok());
}

TEST_F(ImageBatchTest, RefusesWhatMakesNoSense) {
  const ImageFile file = Make(3);
  const SampleOrder order = OrderOf(3, DATA_ORDER_SEQUENTIAL);
  const auto read = [&](const Augmentation& augmentation, const Normalization& normalization) {
    std::vector<float> pixels;
    std::vector<int64_t> labels;
    const absl::Status status = ReadImages(file, order, augmentation, normalization, 0, 1, pixels, labels);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(read({}, {{0.5f}, {0.5f}}), HasSubstr("1 means and 1 standard deviations, but the images have 2"));
  EXPECT_THAT(read({}, {{0.5f, 0.5f}, {}}), HasSubstr("2 means and 0 standard deviations"));
  EXPECT_THAT(read({}, {{0.5f, 0.5f}, {0.5f, 0.0f}}), HasSubstr("normalization of channel 1"));
  EXPECT_THAT(read({}, {{0.5f, std::nanf("")}, {0.5f, 1.0f}}), HasSubstr("normalization of channel 1"));
  EXPECT_THAT(read({.crop_padding = 4}, {}), HasSubstr("crop_padding of 4 must be below the images' sides, 5 x 4"));
  EXPECT_THAT(read({.crop_padding = std::numeric_limits<uint32_t>::max()}, {}), HasSubstr("crop_padding"));
}

}  // namespace
}  // namespace muster::data
