// Residual networks (proto/spec.proto, Resnet), with torchvision's tensor names.
//
// Units: "stem", one for each residual block ("layer1.0", ...), "head" (mean over the image, and the linear layer).
#pragma once

#include <cstdint>
#include <vector>

#include "models/family.h"

namespace muster::models {

const ModelFamily& ResnetFamily();

struct ResnetBlock {
  std::string name;          // "layer1.0"
  uint32_t in = 0, out = 0;  // channels
  uint32_t stride = 1;
  bool bottleneck = false;
  bool projection =
      false;  // its shortcut is a convolution; else the input, padded with zero channels where they differ
};

// Of a resolved model, in order.
std::vector<ResnetBlock> ResnetBlocks(const Resnet& model);
inline constexpr uint32_t kBottleneckExpansion = 4;
inline constexpr double kBatchNormEpsilon = 1e-5;

}  // namespace muster::models
