// For families: what their inventories have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "proto/inventory.pb.h"

namespace muster::models {

inline constexpr double kStandardDeviation = 0.02;  // of weights at the start

// Rows of one piece of a feed-forward network whose hidden layer has `width` elements. On a CPU: enough rows for an
// efficient GEMM, few enough for the cache. On a GPU pieces are not for a cache: they are as large as GEMMs gain from,
// and small beside what is kept.
inline uint64_t HiddenPieceRows(uint64_t width, Device device) {
  return device == DEVICE_CUDA ? 8192 : std::max<uint64_t>(64, (2 << 20) / (4 * width));
}

// Rows of one piece of logits: a few more, because each piece reads and writes the gradient of the output's weights.
inline uint64_t LogitsPieceRows(uint64_t vocabulary, Device device) {
  return std::max<uint64_t>(64, uint64_t{device == DEVICE_CUDA ? 1024u : 64u} * (1 << 20) / (4 * vocabulary));
}

inline Tensor& AddTensor(Unit& unit, const std::string& name, const std::vector<uint64_t>& shape,
                         Initialisation::Kind kind, double standard_deviation = 0) {
  Tensor& tensor = *unit.add_tensors();
  tensor.set_name(name);
  for (const uint64_t n : shape) tensor.add_shape(n);
  tensor.mutable_init()->set_kind(kind);
  tensor.mutable_init()->set_standard_deviation(standard_deviation);
  tensor.set_decay(shape.size() >= 2);
  return tensor;
}

}  // namespace muster::models
