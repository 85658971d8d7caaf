#include "data/images/prepare/decode.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "data/images/prepare/encode_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int> PixelsOf(const std::string& file) {
  const absl::StatusOr<RgbImage> image = DecodeImage(file);
  EXPECT_TRUE(image.ok()) << image.status();
  if (!image.ok()) return {};
  EXPECT_EQ(image->pixels.size(), 3u * image->width * image->height);
  return {image->pixels.begin(), image->pixels.end()};
}

// Some colors that are not constant, [height, width, 3].
std::string Colors(uint32_t width, uint32_t height) {
  std::string pixels;
  for (uint32_t i = 0; i < width * height; ++i) {
    pixels += {static_cast<char>(i * 7), static_cast<char>(255 - i * 5), static_cast<char>(i * i)};
  }
  return pixels;
}

TEST(DecodePng, GrayOfEveryDepthBecomesThreeEqualChannels) {
  const int gray = PNG_COLOR_TYPE_GRAY;
  EXPECT_THAT(PixelsOf(EncodePng(2, 1, "\x05\xc8", {.color = gray})), ElementsAre(5, 5, 5, 200, 200, 200));
  EXPECT_THAT(PixelsOf(EncodePng(3, 1, "\xa0", {.color = gray, .bits = 1})),
              ElementsAre(255, 255, 255, 0, 0, 0, 255, 255, 255));
  EXPECT_THAT(PixelsOf(EncodePng(4, 1, "\x1b", {.color = gray, .bits = 2})),
              ElementsAre(0, 0, 0, 85, 85, 85, 170, 170, 170, 255, 255, 255));
  EXPECT_THAT(PixelsOf(EncodePng(2, 1, "\x1f", {.color = gray, .bits = 4})), ElementsAre(17, 17, 17, 255, 255, 255));
  EXPECT_THAT(PixelsOf(EncodePng(2, 1, "\x12\x34\xff\x80", {.color = gray, .bits = 16})),
              ElementsAre(0x12, 0x12, 0x12, 0xff, 0xff, 0xff));
}

TEST(DecodePng, ColorsKeepTheirOrderAndTheHighByte) {
  EXPECT_THAT(PixelsOf(EncodePng(1, 2, "\x01\x02\x03\x04\x05\x06")), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(PixelsOf(EncodePng(1, 1, "\x01\xff\x02\xff\x03\xff", {.bits = 16})), ElementsAre(1, 2, 3));
}

TEST(DecodePng, APaletteBecomesItsColors) {
  PngOptions options{.color = PNG_COLOR_TYPE_PALETTE, .bits = 2, .palette = {{9, 8, 7}, {1, 2, 3}, {250, 251, 252}}};
  EXPECT_THAT(PixelsOf(EncodePng(3, 1, "\x60", options)), ElementsAre(1, 2, 3, 250, 251, 252, 9, 8, 7));
  options.transparency = {0, 128};
  EXPECT_THAT(PixelsOf(EncodePng(3, 1, "\x60", options)), ElementsAre(1, 2, 3, 250, 251, 252, 9, 8, 7));
}

TEST(DecodePng, AlphaIsDropped) {
  const std::string two("\x0a\x14\x1e\x00\x28\x32\x3c\x80", 8);
  EXPECT_THAT(PixelsOf(EncodePng(2, 1, two, {.color = PNG_COLOR_TYPE_RGBA})), ElementsAre(10, 20, 30, 40, 50, 60));
  EXPECT_THAT(PixelsOf(EncodePng(2, 1, std::string("\x0a\x00\x14\x80", 4), {.color = PNG_COLOR_TYPE_GRAY_ALPHA})),
              ElementsAre(10, 10, 10, 20, 20, 20));
}

TEST(DecodePng, InterlacedImagesAreTheSame) {
  const std::string pixels = Colors(13, 11);
  const std::vector<int> plain = PixelsOf(EncodePng(13, 11, pixels));
  EXPECT_EQ(plain, PixelsOf(EncodePng(13, 11, pixels, {.interlaced = true})));
  EXPECT_EQ(plain.back(), static_cast<uint8_t>(pixels.back()));
}

TEST(DecodeJpeg, ColorsAndGray) {
  std::string red;
  for (int i = 0; i < 16 * 16; ++i) red += "\xc8\x1e\x32";
  const std::vector<int> pixels = PixelsOf(EncodeJpeg(16, 16, red));
  ASSERT_EQ(pixels.size(), 768u);
  for (size_t i = 0; i < pixels.size(); ++i) EXPECT_NEAR(pixels[i], (i % 3 == 0 ? 200 : i % 3 == 1 ? 30 : 50), 3);
  const JpegOptions gray{.colors = JCS_GRAYSCALE, .components = 1};
  for (const int value : PixelsOf(EncodeJpeg(9, 5, std::string(45, '\x64'), gray))) EXPECT_NEAR(value, 100, 1);
  EXPECT_EQ(DecodeImage(EncodeJpeg(9, 5, std::string(45, '\x64'), gray))->height, 5u);
}

// The same coefficients in another order.
TEST(DecodeJpeg, ProgressiveImagesAreTheSame) {
  const std::string pixels = Colors(37, 21);
  EXPECT_EQ(PixelsOf(EncodeJpeg(37, 21, pixels)), PixelsOf(EncodeJpeg(37, 21, pixels, {.progressive = true})));
}

void ExpectNoImage(const std::string& file, const std::string& says) {
  const absl::StatusOr<RgbImage> image = DecodeImage(file);
  EXPECT_EQ(image.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(image.status().message()), HasSubstr(says));
}

TEST(DecodeImage, RefusesCmyk) {
  ExpectNoImage(EncodeJpeg(8, 8, std::string(256, '\x40'), {.colors = JCS_CMYK, .components = 4}), "JPEG in CMYK");
}

TEST(DecodeImage, EveryCutFileIsBroken) {
  for (const bool other : {false, true}) {
    const std::string pixels = Colors(20, 20);
    for (const std::string& file :
         {EncodePng(20, 20, pixels, {.interlaced = other}), EncodeJpeg(20, 20, pixels, {.progressive = other})}) {
      ASSERT_TRUE(DecodeImage(file).ok());
      // A JPEG's last two bytes only say that it ends.
      for (size_t size = 0; size + 2 < file.size(); ++size) {
        EXPECT_FALSE(DecodeImage(file.substr(0, size)).ok()) << size << " of " << file.size();
      }
    }
  }
}

TEST(DecodeImage, SaysWhatIsWrong) {
  ExpectNoImage("", "is empty");
  ExpectNoImage("GIF89a", "is neither a PNG nor a JPEG image");
  const std::string png = EncodePng(4, 4, Colors(4, 4)), jpeg = EncodeJpeg(40, 40, Colors(40, 40));
  ExpectNoImage(png.substr(0, 40), "broken PNG: ends early");
  std::string flipped = png;
  flipped[flipped.size() / 2] ^= 1;
  ExpectNoImage(flipped, "broken PNG: ");
  ExpectNoImage(jpeg.substr(0, jpeg.size() * 2 / 3), "broken JPEG: Premature end of");
  ExpectNoImage(jpeg.substr(0, jpeg.size() * 2 / 3) + "\xff\xd9", "premature end of data segment");
  ExpectNoImage("\xff\xd8\xff", "broken JPEG: ");
}

TEST(DecodeImage, BoundsTheSizeBeforeItAllocates) {
  const std::string png = EncodePng(100, 100, std::string(30'000, '\0'));
  const auto limited = DecodeImage(png, {.pixels = 9'999});
  EXPECT_THAT(std::string(limited.status().message()), HasSubstr("has 100 x 100 pixels; at most 9999 in all"));
  EXPECT_TRUE(DecodeImage(png, {.pixels = 10'000}).ok());
  EXPECT_FALSE(DecodeImage(EncodeJpeg(100, 100, std::string(30'000, '\0')), {.pixels = 9'999}).ok());
  // 60,000 x 60,000 pixels in a frame header: beyond the default limit.
  std::string jpeg = EncodeJpeg(8, 8, Colors(8, 8));
  const size_t frame = jpeg.find("\xff\xc0");
  jpeg.replace(frame + 5, 4, "\xea\x60\xea\x60");
  ExpectNoImage(jpeg, "60000 x 60000 pixels; at most 100000000");
  jpeg.replace(frame + 5, 4, std::string("\x10\x00\x10\x00", 4));
  ExpectNoImage(jpeg, "bytes cannot hold the 4096 x 4096 pixels");
}

// Each scan is a pass over the whole image, so a small file could take hours.
TEST(DecodeJpeg, RefusesThousandsOfScans) {
  const std::string jpeg = EncodeJpeg(64, 64, Colors(64, 64), {.progressive = true});
  const size_t scan = jpeg.find("\xff\xda"), next = jpeg.find("\xff\xc4", scan + 2);
  ASSERT_LT(next, jpeg.size());
  std::string many = jpeg.substr(0, next);
  for (int i = 0; i < 200; ++i) many += jpeg.substr(scan, next - scan);
  ExpectNoImage(many + jpeg.substr(next), "more than 100 scans");
  many = jpeg.substr(0, next);
  for (int i = 0; i < 50; ++i) many += jpeg.substr(scan, next - scan);
  EXPECT_TRUE(DecodeImage(many + jpeg.substr(next)).ok());
}

}  // namespace
}  // namespace muster::data
