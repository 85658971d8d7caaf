#include "data/images/image_batch.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "data/random_purpose.h"

namespace muster::data {
namespace {

// The 256 values that a pixel of a channel can become.
using Levels = std::array<float, 256>;

std::vector<Levels> LevelsOf(const Normalization& normalization, uint32_t channels) {
  std::vector<Levels> levels(channels);
  for (uint32_t c = 0; c < channels; ++c) {
    for (int value = 0; value < 256; ++value) {
      float level = static_cast<float>(value) / 255.0f;
      if (!normalization.mean.empty()) level = (level - normalization.mean[c]) / normalization.standard_deviation[c];
      levels[c][value] = level;
    }
  }
  return levels;
}

// One channel: `out` becomes the crop of `in`, both [height, width]. Output column x is column left + x of the padded
// image, which is column left + x - padding of `in`.
void CropChannel(const uint8_t* in, uint32_t height, uint32_t width, uint32_t padding, const Crop& crop,
                 const Levels& levels, float* out) {
  const int64_t down = int64_t{crop.top} - padding, right = int64_t{crop.left} - padding;
  const auto begin = static_cast<uint32_t>(std::clamp<int64_t>(-right, 0, width));
  const auto end = static_cast<uint32_t>(std::clamp<int64_t>(width - right, 0, width));
  for (uint32_t y = 0; y < height; ++y, out += width) {
    const int64_t from = y + down;
    if (from < 0 || from >= height) {
      std::fill(out, out + width, levels[0]);
      continue;
    }
    const int64_t row = from * width + right;
    if (crop.flip) {
      std::fill(out, out + (width - end), levels[0]);
      for (uint32_t x = begin; x < end; ++x) out[width - 1 - x] = levels[in[row + x]];
      std::fill(out + (width - begin), out + width, levels[0]);
    } else {
      std::fill(out, out + begin, levels[0]);
      for (uint32_t x = begin; x < end; ++x) out[x] = levels[in[row + x]];
      std::fill(out + end, out + width, levels[0]);
    }
  }
}

// An integer in [0, count), uniform up to count / 2^32.
uint32_t Below(uint32_t bits, uint64_t count) { return static_cast<uint32_t>(bits * count >> 32); }

}  // namespace

Crop DrawCrop(const Augmentation& augmentation, uint64_t seed, uint64_t sample) {
  const std::array<uint32_t, 4> bits = RandomBits(seed, sample, RandomPurpose::kCrop);
  const uint64_t offsets = 2 * uint64_t{augmentation.crop_padding} + 1;
  return {.top = Below(bits[0], offsets),
          .left = Below(bits[1], offsets),
          .flip = augmentation.flip && (bits[2] >> 31) != 0};
}

absl::Status CheckNormalization(const Normalization& normalization, uint32_t channels) {
  const auto &mean = normalization.mean, &deviation = normalization.standard_deviation;
  if (mean.empty() && deviation.empty()) return absl::OkStatus();
  if (mean.size() != channels || deviation.size() != channels) {
    return absl::InvalidArgumentError(absl::StrCat("normalization has ", mean.size(), " means and ", deviation.size(),
                                                   " standard deviations, but the images have ", channels,
                                                   " channels: give one of each for every channel"));
  }
  for (uint32_t c = 0; c < channels; ++c) {
    if (std::isfinite(mean[c]) && std::isfinite(deviation[c]) && deviation[c] > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("normalization of channel ", c, ": the mean is ", mean[c],
                                                   " and the standard deviation ", deviation[c],
                                                   "; they must be finite, and the latter above 0"));
  }
  return absl::OkStatus();
}

absl::Status CheckAugmentation(const Augmentation& augmentation, uint32_t height, uint32_t width) {
  if (augmentation.crop_padding < std::min(height, width)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("crop_padding of ", augmentation.crop_padding,
                                                 " must be below the images' sides, ", height, " x ", width,
                                                 ": a crop might contain only padding"));
}

absl::StatusOr<Normalization> Measure(const ImageFile& file) {
  const uint64_t plane = uint64_t{file.height()} * file.width();
  std::vector<uint8_t> pixels(file.channels() * plane);
  std::vector<std::array<uint64_t, 256>> counts(file.channels());
  for (uint64_t i = 0; i < file.images(); ++i) {
    uint32_t label;
    if (absl::Status status = file.Read(i, absl::MakeSpan(pixels), label); !status.ok()) return status;
    for (uint32_t c = 0; c < file.channels(); ++c) {
      for (uint64_t at = c * plane; at < (c + 1) * plane; ++at) ++counts[c][pixels[at]];
    }
  }
  Normalization result;
  const double total = static_cast<double>(plane) * static_cast<double>(file.images());
  for (const std::array<uint64_t, 256>& count : counts) {
    double mean = 0, variance = 0;
    for (int value = 0; value < 256; ++value) mean += value / 255.0 * (static_cast<double>(count[value]) / total);
    for (int value = 0; value < 256; ++value) {
      const double distance = value / 255.0 - mean;
      variance += distance * distance * (static_cast<double>(count[value]) / total);
    }
    result.mean.push_back(static_cast<float>(mean));
    result.standard_deviation.push_back(static_cast<float>(std::sqrt(variance)));
  }
  return result;
}

absl::Status ReadImages(const ImageFile& file, const SampleOrder& order, const Augmentation& augmentation,
                        const Normalization& normalization, uint64_t first, uint64_t count, std::vector<float>& pixels,
                        std::vector<int64_t>& labels) {
  const uint32_t channels = file.channels(), height = file.height(), width = file.width();
  if (absl::Status status = CheckNormalization(normalization, channels); !status.ok()) return status;
  if (absl::Status status = CheckAugmentation(augmentation, height, width); !status.ok()) return status;
  const std::vector<Levels> levels = LevelsOf(normalization, channels);
  const uint64_t plane = uint64_t{height} * width;
  std::vector<uint8_t> raw(channels * plane);
  pixels.resize(count * raw.size());
  labels.resize(count);
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t label = 0;
    absl::Status status = file.Read(order.Index(first + i), absl::MakeSpan(raw), label);
    if (!status.ok()) return status;
    labels[i] = label;
    const Crop crop = DrawCrop(augmentation, order.seed(), first + i);
    for (uint32_t c = 0; c < channels; ++c) {
      CropChannel(raw.data() + c * plane, height, width, augmentation.crop_padding, crop, levels[c],
                  pixels.data() + (i * channels + c) * plane);
    }
  }
  return absl::OkStatus();
}

}  // namespace muster::data
