// PNG and JPEG files of unknown origin as RGB, by libpng and libjpeg-turbo.
//
//   absl::StatusOr<RgbImage> image = DecodeImage(bytes);
//
// The pixels are those of Pillow's Image.open(...).convert("RGB"), which torchvision's ImageFolder reads:
//   gray becomes three equal channels, a palette its colors
//   alpha is dropped, not composited, so transparent pixels keep the color that the file has for them
//   of 16 bits the high byte is kept (also in gray, where Pillow cuts values at 255 instead)
//   the orientation of EXIF, gamma and color profiles are ignored
// CMYK JPEG has no agreed conversion to RGB and is refused. So is a file that ends early.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::data {

struct RgbImage {
  uint32_t width = 0;
  uint32_t height = 0;
  std::vector<uint8_t> pixels;  // [height, width, 3]
};

struct DecodeLimits {
  uint64_t pixels = 100'000'000;  // 300 MB decoded
};

// Recognizes the format by content. Memory is allocated only for images within the limits whose file is long enough for
// their size. Thread-safe.
// InvalidArgument: neither PNG nor JPEG, broken, ends early, beyond the limits, or CMYK. The message does not name the
// file, which only the caller knows.
absl::StatusOr<RgbImage> DecodeImage(std::string_view bytes, const DecodeLimits& limits = {});

// One format each, which `bytes` begins like. For DecodeImage.
absl::StatusOr<RgbImage> DecodePng(std::string_view bytes, const DecodeLimits& limits);
absl::StatusOr<RgbImage> DecodeJpeg(std::string_view bytes, const DecodeLimits& limits);

// InvalidArgument: width x height is beyond the limits, or needs more than `bytes` of file, of which one holds at most
// `pixels_per_byte`.
absl::Status CheckSize(uint64_t width, uint64_t height, const DecodeLimits& limits, uint64_t bytes,
                       uint64_t pixels_per_byte);

}  // namespace muster::data
