// The spec's dtypes as LibTorch's.
#pragma once

#include <c10/core/ScalarType.h>

#include "proto/spec.pb.h"

namespace muster::engine {

inline at::ScalarType ScalarTypeOf(Dtype dtype) {
  switch (dtype) {
    case DTYPE_BF16:
      return at::kBFloat16;
    case DTYPE_FP16:
      return at::kHalf;
    default:
      return at::kFloat;
  }
}

}  // namespace muster::engine
