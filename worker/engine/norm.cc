#include "worker/engine/norm.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>

namespace muster::engine {

at::Tensor FlatNorm(const at::Tensor& flat) {
  constexpr int64_t kRow = 4096;
  const int64_t rows = flat.size(0) / kRow, body = rows * kRow;
  const at::Tensor tail = flat.narrow(0, body, flat.size(0) - body);
  const at::Tensor norms = at::linalg_vector_norm(flat.narrow(0, 0, body).view({rows, kRow}), 2, at::IntArrayRef{1});
  return at::linalg_vector_norm(at::cat({norms, at::linalg_vector_norm(tail).view({1})}));
}

}  // namespace muster::engine
