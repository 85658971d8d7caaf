// Decodes arbitrary bytes as PNG or JPEG: an error, or an image of the size that it says, which can be resized. The
// first byte says whether the checksums of a PNG's chunks are made right first, so that its decoder sees more than a
// wrong checksum.
#include <zlib.h>

#include <cstdio>
#include <cstdlib>

#include "data/images/prepare/decode.h"
#include "data/images/prepare/encode_test.h"
#include "data/images/prepare/resize.h"
#include "testing/fuzz.h"

namespace muster::fuzz {
namespace {

uint32_t Big(const std::string& bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

// A chunk is its length, type, content and the CRC-32 of the latter two.
void MakeChecksumsRight(std::string& png) {
  for (size_t at = 8; at + 12 <= png.size();) {
    const uint64_t length = Big(png, at);
    if (length > png.size() - at - 12) return;
    const auto* type = reinterpret_cast<const Bytef*>(png.data()) + at + 4;
    const uint32_t sum = static_cast<uint32_t>(crc32(0, type, static_cast<uInt>(length + 4)));
    for (int i = 0; i < 4; ++i) png[at + 8 + length + i] = static_cast<char>(sum >> (24 - 8 * i));
    at += 12 + length;
  }
}

std::string Pixels(size_t count) {
  std::string pixels;
  for (size_t i = 0; i < count; ++i) pixels += static_cast<char>(i * i * 37 + i);
  return pixels;
}

}  // namespace

// 'c': with right checksums, 'r': raw.
std::vector<std::string> Seeds() {
  using data::EncodeJpeg;
  using data::EncodePng;
  const data::PngOptions palette{
      .color = PNG_COLOR_TYPE_PALETTE, .bits = 4, .palette = {{1, 2, 3}, {4, 5, 6}}, .transparency = {7}};
  std::vector<std::string> seeds = {
      EncodePng(5, 4, Pixels(60)),
      EncodePng(9, 9, Pixels(243), {.interlaced = true}),
      EncodePng(5, 2, Pixels(20), {.color = PNG_COLOR_TYPE_GRAY, .bits = 16}),
      EncodePng(9, 3, Pixels(6), {.color = PNG_COLOR_TYPE_GRAY, .bits = 1}),
      EncodePng(3, 3, Pixels(72), {.color = PNG_COLOR_TYPE_RGBA, .bits = 16, .interlaced = true}),
      EncodePng(4, 2, std::string("\x01\x10\x11\x00", 4), palette),
  };
  for (std::string& seed : seeds) seed.insert(0, "c");
  for (const bool progressive : {false, true}) {
    seeds.push_back("r" + EncodeJpeg(19, 17, Pixels(969), {.progressive = progressive}));
    seeds.push_back("r" + EncodeJpeg(9, 9, Pixels(81), {.colors = JCS_GRAYSCALE, .components = 1}));
  }
  seeds.push_back("r" + EncodeJpeg(4, 4, Pixels(64), {.colors = JCS_CMYK, .components = 4}));
  seeds.push_back("r" + seeds[0].substr(1));
  return seeds;
}

std::vector<std::string> Words() {
  return {"IHDR",
          "IDAT",
          "IEND",
          "PLTE",
          "tRNS",
          "iCCP",
          "gAMA",
          std::string("\0\0\0\0", 4),
          "\x7f\xff\xff\xff",
          "\xff\xd8\xff",
          "\xff\xc0",
          "\xff\xc2",
          "\xff\xc4",
          "\xff\xda",
          "\xff\xdb",
          "\xff\xdd",
          "\xff\xd0",
          "\xff\xd9",
          std::string("\xff\xee\x00\x0e"
                      "Adobe",
                      9),
          "c\x89PNG\r\n\x1a\n",
          "r\xff\xd8\xff\xe0"};
}

}  // namespace muster::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;  // NOLINT: a function of its own
  if (size == 0) return 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 'c') fuzz::MakeChecksumsRight(bytes);
  // A small limit: a decoder may take long for an image that is large.
  const auto image = data::DecodeImage(bytes, {.pixels = 1 << 18});
  if (!image.ok()) return 0;
  if (image->pixels.size() != size_t{3} * image->width * image->height || image->pixels.empty() ||
      data::ResizeAndCrop(*image, 8).pixels.size() != 192) {
    std::fprintf(stderr, "an image of %u x %u with %zu bytes\n", image->width, image->height, image->pixels.size());
    std::abort();
  }
  return 0;
}
