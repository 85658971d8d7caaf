// NAME.json beside an image file NAME (train.bin.json beside train.bin): what its records are. `muster data
// prepare-images` writes it:
//
//   {"format": "muster-images", "version": 1, "images": 60000, "channels": 3, "height": 32, "width": 32,
//    "label_bytes": 1, "classes": 3, "class_names": ["bird", "cat", "dog"]}
//
// A record is the label (1 byte, or 2 in little endian) and then the pixels, one byte each, [channels, height, width]
// in row-major order. So 3 x 32 x 32 pixels with labels of one byte are CIFAR-10's own layout.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::data {

inline constexpr uint64_t kMostImageClasses = 65536;  // labels of two bytes
inline constexpr uint64_t kMostImageChannels = 1024;
inline constexpr uint64_t kLongestImageSide = 65536;
inline constexpr uint64_t kMostPixelBytes = uint64_t{1} << 30;  // of one image

struct ImageSidecar {
  uint64_t images = 0;
  uint32_t channels = 0;
  uint32_t height = 0;
  uint32_t width = 0;
  uint32_t label_bytes = 1;  // 1 or 2
  uint64_t classes = 0;
  std::vector<std::string> class_names;  // by label; empty: unknown

  uint64_t pixel_bytes() const { return uint64_t{channels} * height * width; }
};

// "train.bin.json" of "train.bin".
std::string SidecarPath(const std::string& image_file);

std::string ToJson(const ImageSidecar& sidecar);

// InvalidArgument, beginning with `path`: no JSON object, a missing or wrong value, another version, or beyond the
// limits above.
absl::StatusOr<ImageSidecar> ParseImageSidecar(const std::string& path, std::string_view json);

}  // namespace muster::data
