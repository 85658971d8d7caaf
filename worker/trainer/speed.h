// How fast a rank multiplies on its slot, for shares in proportion to it (spec: strategy.shares: speed).
#pragma once

#include <cstdint>

namespace muster::trainer {

struct Gemm {
  int64_t width = 0;  // of the model: [rows, width] times [width, 4 * width]
  bool bf16 = false;
  bool cuda = false;
};

// FLOP/s of such GEMMs, by the median of as many as fit into some 20 ms, with the threads that the calling thread
// has. Every rank of a generation measures at the same time, before its first step, so ranks that share cores find what
// each gets of them. 0: it could not be measured; the log says why.
double MeasureSpeed(const Gemm& gemm);

}  // namespace muster::trainer
