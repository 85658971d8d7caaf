// Cuts an image to a square as torchvision's Resize(size), CenterCrop(size) do on Pillow images: the same bytes.
#pragma once

#include <cstdint>

#include "data/images/prepare/decode.h"

namespace muster::data {

// The image, resized so that its shorter side is `size`, then its middle `size` x `size` pixels. Bilinear with
// antialiasing: a triangle as wide as an output pixel covers of the input. Only what the middle needs is computed, so
// memory and time do not grow with a long other side.
// REQUIRES: at least one pixel, size > 0.
RgbImage ResizeAndCrop(const RgbImage& image, uint32_t size);

}  // namespace muster::data
