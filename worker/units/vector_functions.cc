#include "worker/units/vector_functions.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

namespace muster::units {

void ChooseVectorFunctions() {
  // Threads that come meanwhile wait for it.
  [[maybe_unused]] static const bool chosen = at::ones({1}, at::kDouble).sqrt().item<double>() == 1;
}

}  // namespace muster::units
