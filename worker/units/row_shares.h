// How row kernels take tensors, and how LibTorch's threads share the rows. T is the wide dtype, N the narrow one
// (row_kernels.h).
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "worker/units/row_kernels.h"

namespace muster::units {

inline constexpr int64_t kGrain = 16'384;  // elements that are worth one more thread
inline constexpr int64_t kBlock = 128;     // rows whose sums are added up before they join a longer sum

// Whether the programs of GPUs compute what is in `t`.
inline bool ByPrograms(const at::Tensor& t, RowCode code) { return code == RowCode::kDevice || !t.is_cpu(); }

// body(wide zero, narrow zero) for the dtypes that belong to `narrow`.
template <typename F>
void Dispatch(const at::Tensor& narrow, const F& body) {
  switch (narrow.scalar_type()) {
    case at::kFloat:
      return body(float{}, float{});
    case at::kDouble:
      return body(double{}, double{});
    case at::kBFloat16:
      return body(float{}, c10::BFloat16{});
    case at::kHalf:
      return body(float{}, c10::Half{});
    default:
      TORCH_CHECK(false, "row kernels take bf16, fp16, fp32 or float64, not ", narrow.scalar_type());
  }
}

template <typename T>
T* In(const at::Tensor& t) {
  TORCH_CHECK(t.is_contiguous() && t.is_cpu(), "row kernels take contiguous CPU tensors");
  return t.mutable_data_ptr<T>();
}

// body(first row, rows) on each thread's share.
template <typename F>
void EachShare(int64_t rows, int64_t width, const F& body) {
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / width),
                   [&](int64_t begin, int64_t end) { body(begin, end - begin); });
}

template <typename From, typename To>
void AddVector(const From* from, int64_t n, To* to) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

// body(first row, rows, sums) on blocks of kBlock rows of each thread's share, `totals.size()` sums of `width` each;
// then adds the sums to `totals`, in the order of the rows. Blocks are short and are added up in float64, so the digits
// of a long sum do not depend on how many threads share it.
template <typename T, typename F>
void EachShareSumming(int64_t rows, int64_t width, std::vector<T*> totals, const F& body) {
  const int64_t n = width * static_cast<int64_t>(totals.size()), most = at::get_num_threads();
  std::vector<double> sums(static_cast<size_t>(n * most), 0);
  EachShare(rows, width, [&](int64_t begin, int64_t count) {
    double* const mine = sums.data() + n * at::get_thread_num();
    std::vector<T> block(static_cast<size_t>(n));
    for (int64_t r = 0; r < count; r += kBlock) {
      std::fill(block.begin(), block.end(), T(0));
      body(begin + r, std::min(kBlock, count - r), block.data());
      AddVector(block.data(), n, mine);
    }
  });
  for (int64_t thread = 1; thread < most; ++thread) AddVector(sums.data() + n * thread, n, sums.data());
  for (size_t v = 0; v < totals.size(); ++v) {
    AddVector(sums.data() + width * static_cast<int64_t>(v), width, totals[v]);
  }
}

}  // namespace muster::units
