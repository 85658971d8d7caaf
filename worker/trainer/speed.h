// Measures a rank's GEMM speed, for shares in proportion to it (spec: strategy.shares: speed).
#pragma once

#include <cstdint>

#include "proto/spec.pb.h"

namespace muster::trainer {

struct Gemm {
  int64_t width = 0;  // of the model: [rows, width] times [width, 4 * width]
  Dtype dtype = DTYPE_FP32;
  bool cuda = false;
};

// The median FLOP/s of as many such GEMMs as fit into about 20 ms, with the calling thread's number of threads. Every
// rank of a generation measures at the same time, before its first step, so ranks that share cores measure their share.
// 0: the measurement failed; the log says why.
double MeasureSpeed(const Gemm& gemm);

}  // namespace muster::trainer
