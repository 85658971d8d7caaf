// The message of a rank that sends some elements of a range: how many, their indices in Elias-Fano code (Elias 1974,
// "Efficient storage and retrieval by content and address of static files"; Vigna 2013, "Quasi-succinct indices",
// section 3), their values. A message's size depends only on the range and on how many it may have.
//
//   count                32 bits
//   lower halves         `lower` bits of each index, one after another from the least significant bit on
//   upper halves         bit (index >> lower) + i is set for index number i
//   values               fp32; bf16; or int8, after a scale (fp32) for each 256 of them
//
// Each field begins at a multiple of 32 bits.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/spec.pb.h"

namespace muster::compression {

struct Sparse {
  std::vector<int32_t> indices;  // ascending
  std::vector<float> values;
  void clear() { indices.clear(), values.clear(); }
};

// Of up to `most` of `elements` elements. In words of 32 bits.
struct SparseLayout {
  static constexpr int64_t kScaled = 256;  // values with one scale
  SparseLayout() = default;
  SparseLayout(int64_t elements, int64_t most, SentValues values);

  int lower = 0;  // bits of a lower half
  int64_t upper_at = 0, values_at = 0, codes_at = 0, words = 0;
};

class SparseCode {
 public:
  SparseCode(int64_t elements, int64_t most, SentValues values) : values_(values), layout_(elements, most, values) {}

  int64_t words() const { return layout_.words; }
  // Writes the message, and replaces the values by what Decode makes of them. Values that are not finite stay so.
  void Encode(Sparse& sparse, absl::Span<uint32_t> message) const;
  void Decode(absl::Span<const uint32_t> message, Sparse& sparse) const;

 private:
  SentValues values_;
  SparseLayout layout_;
};

}  // namespace muster::compression
