// Codes of 8 bits with one scale for each block of elements, in the host's memory: a pass or two over the elements,
// where tensors' operators take a dozen.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace muster::compression {

// For each block of `values`: its scale, the largest magnitude over 127, and its codes, values over the scale, to the
// nearest. What is not sent stays: values -= codes * scale. A block that is all zero, or has a value that is not
// finite, has zeros for codes; the scale then is not finite either. REQUIRES: as many codes as values, in scales.size()
// blocks of the same size.
void EncodeBlocks(absl::Span<float> values, absl::Span<float> scales, absl::Span<int8_t> codes);

// values = codes * scale, or values += codes * scale.
void DecodeBlocks(absl::Span<const float> scales, absl::Span<const int8_t> codes, absl::Span<float> values);
void AddBlocks(absl::Span<const float> scales, absl::Span<const int8_t> codes, absl::Span<float> values);

}  // namespace muster::compression
