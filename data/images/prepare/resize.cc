#include "data/images/prepare/resize.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace muster::data {
namespace {

// Weights are fixed-point numbers, and the pixels between the two passes are bytes: as in Pillow's Resample.c, so that
// results are equal to the bit.
constexpr int kWeightBits = 32 - 8 - 2;

// Which input pixels an output pixel is the weighted sum of.
struct Taps {
  int64_t first = 0;
  std::vector<int32_t> weights;
};

// As Pillow, which casts number + 0.5 to an integer: that differs only below 0, where TapsOf starts at 0 either way.
int64_t Nearest(double number) { return static_cast<int64_t>(std::floor(number + 0.5)); }

// Output pixels [begin, begin + count) of a side that goes from `from` to `to` pixels.
std::vector<Taps> TapsOf(uint32_t from, uint64_t to, uint64_t begin, uint32_t count) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double support = std::max(1.0, scale);
  std::vector<Taps> result(count);
  std::vector<double> weights;
  for (uint32_t i = 0; i < count; ++i) {
    const double center = (static_cast<double>(begin + i) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(0, Nearest(center - support));
    const int64_t end = std::min<int64_t>(from, Nearest(center + support));
    weights.clear();
    double sum = 0;
    for (int64_t at = first; at < end; ++at) {
      const double distance = std::abs((static_cast<double>(at) - center + 0.5) * (1.0 / support));
      weights.push_back(distance < 1.0 ? 1.0 - distance : 0.0);
      sum += weights.back();
    }
    result[i].first = first;
    for (const double weight : weights) {
      result[i].weights.push_back(static_cast<int32_t>(Nearest(weight / sum * (1 << kWeightBits))));
    }
  }
  return result;
}

uint8_t Rounded(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255)); }
constexpr int32_t kHalf = 1 << (kWeightBits - 1);

// Of the rows [top, top + rows) of `image`: each to the pixels of `taps`.
RgbImage ResizeRows(const RgbImage& image, uint32_t top, uint32_t rows, const std::vector<Taps>& taps) {
  RgbImage out{.width = static_cast<uint32_t>(taps.size()), .height = rows};
  out.pixels.resize(size_t{3} * out.width * rows);
  uint8_t* to = out.pixels.data();
  for (uint32_t y = top; y < top + rows; ++y) {
    for (const Taps& tap : taps) {
      const uint8_t* from = image.pixels.data() + 3 * (size_t{y} * image.width + tap.first);
      int32_t red = kHalf, green = kHalf, blue = kHalf;
      for (const int32_t weight : tap.weights) {
        red += weight * from[0];
        green += weight * from[1];
        blue += weight * from[2];
        from += 3;
      }
      *to++ = Rounded(red);
      *to++ = Rounded(green);
      *to++ = Rounded(blue);
    }
  }
  return out;
}

// Each column of `image`, whose first row is row `top` of the input, to the pixels of `taps`.
RgbImage ResizeColumns(const RgbImage& image, uint32_t top, const std::vector<Taps>& taps) {
  RgbImage out{.width = image.width, .height = static_cast<uint32_t>(taps.size())};
  const size_t stride = size_t{3} * image.width;
  out.pixels.resize(stride * taps.size());
  for (size_t y = 0; y < taps.size(); ++y) {
    const uint8_t* from = image.pixels.data() + (taps[y].first - top) * stride;
    for (size_t x = 0; x < stride; ++x) {
      int32_t sum = kHalf;
      for (size_t i = 0; i < taps[y].weights.size(); ++i) sum += taps[y].weights[i] * from[i * stride + x];
      out.pixels[y * stride + x] = Rounded(sum);
    }
  }
  return out;
}

// The middle of a side: torchvision rounds a half to the even number, as Python does.
uint64_t CropBegin(uint64_t side, uint32_t size) {
  const uint64_t margin = side - size, half = margin / 2;
  return margin % 2 == 0 ? half : half + half % 2;
}

}  // namespace

RgbImage ResizeAndCrop(const RgbImage& image, uint32_t size) {
  const uint32_t shorter = std::min(image.width, image.height);
  const uint64_t width = uint64_t{image.width} * size / shorter, height = uint64_t{image.height} * size / shorter;
  // Where a side keeps its length, the taps are one pixel of weight 1.
  const std::vector<Taps> columns = TapsOf(image.width, width, CropBegin(width, size), size);
  const std::vector<Taps> rows = TapsOf(image.height, height, CropBegin(height, size), size);
  const auto top = static_cast<uint32_t>(rows.front().first);
  const auto bottom = static_cast<uint32_t>(rows.back().first + static_cast<int64_t>(rows.back().weights.size()));
  return ResizeColumns(ResizeRows(image, top, bottom - top, columns), top, rows);
}

}  // namespace muster::data
