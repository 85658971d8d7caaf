// How the operations of device_rows.h take tensors and run programs (program.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <limits>
#include <type_traits>

#include "worker/units/cuda/host_block.h"
#include "worker/units/cuda/row_programs.h"

#ifdef MUSTER_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "worker/units/cuda/launch.h"
#endif

namespace muster::units::device {

using programs::Bf16;
using programs::Fp16;

// Runs `program` on the device of `on`. Profilers see a range of its name.
template <typename Program>
void Run(const Program& program, const at::Tensor& on) {
  const programs::Grid grid = program.grid();
  if (grid.x == 0 || grid.y == 0) return;
  RECORD_FUNCTION(Program::kName, c10::ArrayRef<const c10::IValue>());
  if (on.is_cpu()) return programs::RunOnHost(program);
#ifdef MUSTER_CUDA
  if constexpr (std::is_same_v<typename Program::Number, float>) {
    if (on.is_cuda()) {
      TORCH_CHECK(grid.x <= std::numeric_limits<int32_t>::max() && grid.y <= std::numeric_limits<uint16_t>::max(),
                  Program::kName, " of ", grid.x, " x ", grid.y, " blocks: more than a GPU's grid has");
      const c10::cuda::CUDAGuard guard(on.device());
      const char* const error = programs::Launch(program, c10::cuda::getCurrentCUDAStream(on.get_device()).stream());
      TORCH_CHECK(error == nullptr, "CUDA error at the launch of ", Program::kName, ": ", error);
      return;
    }
  }
#endif
  TORCH_CHECK(false, Program::kName, " runs on CPUs, and in bf16, fp16 and fp32 on NVIDIA GPUs; it was given ",
              on.device(), " and ", on.scalar_type());
}

// body(wide zero, narrow zero) for the dtypes that belong to `narrow`.
template <typename F>
void Dispatch(const at::Tensor& narrow, const F& body) {
  switch (narrow.scalar_type()) {
    case at::kFloat:
      return body(float{}, float{});
    case at::kDouble:
      return body(double{}, double{});
    case at::kBFloat16:
      return body(float{}, Bf16{});
    case at::kHalf:
      return body(float{}, Fp16{});
    default:
      TORCH_CHECK(false, "row kernels take bf16, fp16, fp32 or float64, not ", narrow.scalar_type());
  }
}

template <typename T>
T* Numbers(const at::Tensor& t) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return reinterpret_cast<Bf16*>(t.mutable_data_ptr<c10::BFloat16>());
  } else if constexpr (std::is_same_v<T, Fp16>) {
    return reinterpret_cast<Fp16*>(t.mutable_data_ptr<c10::Half>());
  } else {
    return t.mutable_data_ptr<T>();
  }
}

// The sizes of an operation, which all of its tensors must have, on one device: a GPU would not notice.
class Shape {
 public:
  explicit Shape(const at::Tensor& matrix) : Shape(matrix.size(0), matrix.size(1), matrix.device()) {
    TORCH_CHECK(matrix.dim() == 2, "row kernels take matrices");
  }
  Shape(int64_t rows, int64_t width, at::Device device) : rows(rows), width(static_cast<int>(width)), device_(device) {
    TORCH_CHECK(width <= std::numeric_limits<int>::max(), "row kernels take rows of at most 2^31 - 1 elements");
  }
  template <typename T>
  T* Matrix(const at::Tensor& t) const {
    return Contiguous<T>(t, rows * width);
  }
  template <typename T>
  T* Vector(const at::Tensor& t) const {
    return Contiguous<T>(t, width);
  }
  // `each` of a row.
  template <typename T>
  T* Statistics(const at::Tensor& t, int64_t each) const {
    return Contiguous<T>(t, each * rows);
  }
  template <typename T>
  T* Contiguous(const at::Tensor& t, int64_t elements) const {
    TORCH_CHECK(t.is_contiguous() && t.device() == device_ && t.numel() == elements,
                "row kernels take contiguous tensors of one device and of matching sizes");
    return Numbers<T>(t);
  }

  const int64_t rows;
  const int width;

 private:
  const at::Device device_;
};

// Runs a program that gives sums by tiles, and adds them to `vectors`.
template <typename Source, int kSums = Source::kSums>
void AddColumns(const Source& source, const Shape& shape, const at::Tensor& on, const at::Tensor (&vectors)[kSums]) {
  using T = typename Source::Number;
  const at::Tensor partial = at::empty({programs::TilesOf(shape.rows), kSums, shape.width}, vectors[0].options());
  Run(programs::ColumnTiles<Source>{source, Numbers<T>(partial), shape.rows, shape.width}, on);
  programs::ColumnTotals<T, kSums> totals{Numbers<T>(partial), {}, shape.rows, shape.width};
  for (int k = 0; k < kSums; ++k) totals.totals[k] = shape.Vector<T>(vectors[k]);
  Run(totals, on);
}

}  // namespace muster::units::device
