// The lower bound of a training step: its linear GEMMs and its attention alone, as units compute them.
#pragma once

#include <memory>

#include "bench/model.h"

namespace muster::bench {

// Holds weights, their gradients and activations with the model's sizes. Not thread-safe.
class Gemms {
 public:
  virtual ~Gemms() = default;
  // Runs each GEMM of one step once: every linear layer's output, input gradient and weight gradient (accumulated), and
  // attention forward and backward. Writes into preallocated buffers.
  virtual void Step() = 0;
};

std::unique_ptr<Gemms> MakeGemms(const Dimensions& shape);

}  // namespace muster::bench
