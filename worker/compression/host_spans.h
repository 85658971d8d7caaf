// What contiguous tensors in the host's memory hold.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace muster::compression {

inline absl::Span<float> FloatsOf(const at::Tensor& values) {
  return absl::MakeSpan(values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel()));
}
// Of a tensor of elements of 32 bits.
inline absl::Span<uint32_t> WordsOf(const at::Tensor& values) {
  return absl::MakeSpan(static_cast<uint32_t*>(values.mutable_data_ptr()), static_cast<size_t>(values.numel()));
}
inline absl::Span<int8_t> CodesOf(const at::Tensor& values) {
  return absl::MakeSpan(static_cast<int8_t*>(values.mutable_data_ptr()), 4 * static_cast<size_t>(values.numel()));
}

}  // namespace muster::compression
