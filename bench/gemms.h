// The lower bound of a training step: its linear and attention GEMMs alone, by the same library.
#pragma once

#include <memory>

#include "bench/model.h"

namespace muster::bench {

// Holds weights, their gradients and activations with the model's sizes. Not thread-safe.
class Gemms {
 public:
  virtual ~Gemms() = default;
  // Runs each GEMM of one step once: every linear layer's output, input gradient and weight gradient (accumulated), and
  // scaled dot product attention forward and backward by LibTorch's fused operators. Writes into preallocated buffers.
  virtual void Step() = 0;
};

std::unique_ptr<Gemms> MakeGemms(const Dimensions& shape);

}  // namespace muster::bench
