// Samples of a job as a model reads them: augmented, normalized batches. Everything is a pure function of the file, the
// order's seed and the sample's number, so ranks, microbatches and resumed jobs get the same images.
//
//   std::vector<float> pixels;
//   std::vector<int64_t> labels;
//   ReadImages(file, order, {.crop_padding = 4, .flip = true}, normalization, consumed, /*count=*/128, pixels, labels);
//
// Validation uses DATA_ORDER_SEQUENTIAL and Augmentation{}.
// Thread-safe: functions and values.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/images/image_file.h"
#include "data/sample_order.h"

namespace muster::data {

// He et al., "Deep residual learning for image recognition", 2016, section 4.2, with crop_padding 4 and flip. The
// default changes nothing.
struct Augmentation {
  uint32_t crop_padding = 0;  // black pixels added to each side before a random crop of the original size
  bool flip = false;          // mirror left and right with probability 1/2
};

// What Augmentation draws for one sample: the crop's upper left corner in the padded image, then the mirroring.
struct Crop {
  uint32_t top = 0;   // 0 .. 2 crop_padding
  uint32_t left = 0;  // 0 .. 2 crop_padding
  bool flip = false;
};

// By Philox from (seed, sample), so epochs differ.
Crop DrawCrop(const Augmentation& augmentation, uint64_t seed, uint64_t sample);

// Of pixel / 255, per channel: a value becomes (pixel / 255 - mean) / standard_deviation. Both empty: pixel / 255.
struct Normalization {
  std::vector<float> mean;
  std::vector<float> standard_deviation;
};

// InvalidArgument: not one mean and one standard deviation for each channel, or one that is not finite or, of the
// standard deviations, not above 0.
absl::Status CheckNormalization(const Normalization& normalization, uint32_t channels);

// InvalidArgument: a crop might contain only padding.
absl::Status CheckAugmentation(const Augmentation& augmentation, uint32_t height, uint32_t width);

// Mean and (population) standard deviation of every pixel of the file. A channel of one value has the deviation 0,
// which ReadImages refuses. Reads everything. Errors as ImageFile::Read.
absl::StatusOr<Normalization> Measure(const ImageFile& file);

// Samples [first, first + count): `pixels` becomes [count, channels, height, width] row-major, `labels` [count].
// Padding is black before normalization, and the arithmetic is fp32 in this order: torchvision's RandomCrop,
// RandomHorizontalFlip, ToTensor and Normalize give the same bits for the same crops. REQUIRES:
// order.samples_per_epoch() == file.images(). Errors as ImageFile::Read, CheckNormalization and CheckAugmentation.
absl::Status ReadImages(const ImageFile& file, const SampleOrder& order, const Augmentation& augmentation,
                        const Normalization& normalization, uint64_t first, uint64_t count, std::vector<float>& pixels,
                        std::vector<int64_t>& labels);

}  // namespace muster::data
