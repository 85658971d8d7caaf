// What Selector and SparseCode do, by LibTorch's operators: on any device, to the same bits, and none of them waits for
// a GPU. How many elements are selected is not known to the host then, so tensors have a place for each one that may
// be.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "proto/spec.pb.h"
#include "worker/compression/sparse_code.h"

namespace muster::compression {

// Indices, int64 [most], ascending, of the `most` elements of `sums`, fp32 [elements], that Selector::AddAndFind finds.
at::Tensor FindLargest(const at::Tensor& sums, int64_t most);
// The same of Selector::AddAndSample; where there are fewer, the last places have the index `elements`. Where more than
// 4 * most reach the threshold, those after the first so many are left out.
at::Tensor FindSampled(const at::Tensor& sums, int64_t most, uint64_t step);

class DeviceSparseCode {
 public:
  DeviceSparseCode() = default;
  DeviceSparseCode(int64_t elements, int64_t most, SentValues values, at::Device device);

  int64_t words() const { return layout_.words; }
  // Writes `message`, fp32 [words]. `indices` as FindSampled gives them, `values`, fp32 [most], 0 in places without
  // one. Returns what DecodeValues makes of them.
  at::Tensor Encode(const at::Tensor& indices, const at::Tensor& values, const at::Tensor& message) const;
  at::Tensor DecodeIndices(const at::Tensor& message) const;
  at::Tensor DecodeValues(const at::Tensor& message) const;

 private:
  at::Tensor Pack(const at::Tensor& bits) const;
  at::Tensor Unpack(const at::Tensor& words) const;
  int64_t lower_words() const { return layout_.upper_at - 1; }
  int64_t upper_words() const { return layout_.values_at - layout_.upper_at; }

  int64_t elements_ = 0, most_ = 0;
  SentValues values_ = SENT_VALUES_FP32;
  SparseLayout layout_;
  at::Tensor bits_, places_;  // 0 to 31, int32; 0 to most - 1, int64
};

}  // namespace muster::compression
