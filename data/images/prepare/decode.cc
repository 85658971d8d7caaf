#include "data/images/prepare/decode.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace muster::data {

absl::Status CheckSize(uint64_t width, uint64_t height, const DecodeLimits& limits, uint64_t bytes,
                       uint64_t pixels_per_byte) {
  if (width == 0 || height == 0) return absl::InvalidArgumentError("has no pixels");
  const uint64_t pixels = width * height;  // of two numbers of at most 32 bits
  if (pixels > limits.pixels) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", width, " x ", height, " pixels; at most ", limits.pixels, " in all are decoded"));
  }
  if (pixels / pixels_per_byte > bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("ends early: ", bytes, " bytes cannot hold the ", width, " x ", height, " pixels that it claims"));
  }
  return absl::OkStatus();
}

absl::StatusOr<RgbImage> DecodeImage(std::string_view bytes, const DecodeLimits& limits) {
  if (bytes.substr(0, 4) == "\x89PNG") return DecodePng(bytes, limits);
  if (bytes.substr(0, 3) == "\xff\xd8\xff") return DecodeJpeg(bytes, limits);
  return absl::InvalidArgumentError(bytes.empty() ? "is empty" : "is neither a PNG nor a JPEG image");
}

}  // namespace muster::data
