// Initial weights as a function of (seed, tensor name, element): equal for every strategy, world size and thread count.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "proto/inventory.pb.h"

namespace muster::engine {

// Elements [begin, begin + values.size()) of the tensor, which may be a part of one (Tensor.box). Normal numbers come
// from Philox 4x32-10 (Salmon et al. 2011) keyed by the first 8 bytes of SHA-256("<seed>/<name>"), block index =
// element / 4, by Box and Muller's transform.
void Initialise(uint64_t seed, const Tensor& tensor, uint64_t begin, absl::Span<float> values);

}  // namespace muster::engine
