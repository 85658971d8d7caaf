#include "worker/units/cuda/device_rows.h"

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
namespace {

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
  explicit Shape(const at::Tensor& matrix)
      : rows(matrix.size(0)), width(static_cast<int>(matrix.size(1))), device_(matrix.device()) {
    TORCH_CHECK(matrix.dim() == 2 && matrix.size(1) <= std::numeric_limits<int>::max(), "row kernels take matrices");
  }
  template <typename T>
  T* Matrix(const at::Tensor& t) const {
    return Contiguous<T>(t, rows * width);
  }
  template <typename T>
  T* Vector(const at::Tensor& t) const {
    return Contiguous<T>(t, width);
  }
  template <typename T>
  T* Statistics(const at::Tensor& t) const {
    return Contiguous<T>(t, 2 * rows);
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

// Runs a program that gives sums by tiles, and adds them to `totals`.
template <typename Source, int kSums = Source::kSums>
void AddColumns(const Source& source, const Shape& shape, const at::Tensor& on, const at::Tensor (&vectors)[kSums]) {
  using T = typename Source::Number;
  const at::Tensor partial = at::empty({programs::TilesOf(shape.rows), kSums, shape.width}, vectors[0].options());
  Run(programs::ColumnTiles<Source>{source, Numbers<T>(partial), shape.rows, shape.width}, on);
  programs::ColumnTotals<T, kSums> totals{Numbers<T>(partial), {}, shape.rows, shape.width};
  for (int k = 0; k < kSums; ++k) totals.totals[k] = shape.Vector<T>(vectors[k]);
  Run(totals, on);
}

}  // namespace

void DropoutFactors(const DropoutPlace& place, int64_t tokens, int64_t first_row, const at::Tensor& out) {
  const Shape s(out);
  Run(programs::DropoutFactors{s.Matrix<float>(out), place.seed ^ kDropoutKey, place.step, place.place, place.least(),
                               place.scale(), place.first_sample, tokens, first_row, s.rows, s.width},
      out);
}

void Norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out,
          const at::Tensor& statistics) {
  const Shape s(x);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    Run(programs::Norm<T, N>{s.Matrix<T>(x), s.Vector<N>(weight), s.Vector<N>(bias), s.Matrix<N>(out),
                             s.Statistics<T>(statistics), s.rows, s.width},
        x);
  });
}

void AddAndNorm(const at::Tensor& x, const at::Tensor& gemm, const at::Tensor& gemm_bias, const at::Tensor& weight,
                const at::Tensor& bias, const at::Tensor& sum, const at::Tensor& out, const at::Tensor& statistics) {
  const Shape s(x);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    Run(programs::AddAndNorm<T, N>{s.Matrix<T>(x), s.Matrix<N>(gemm), s.Vector<N>(gemm_bias), s.Vector<N>(weight),
                                   s.Vector<N>(bias), s.Matrix<T>(sum), s.Matrix<N>(out), s.Statistics<T>(statistics),
                                   s.rows, s.width},
        x);
  });
}

void NormAgain(const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight, const at::Tensor& bias,
               const at::Tensor& out) {
  const Shape s(x);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    Run(programs::NormAgain<T, N>{s.Matrix<T>(x), s.Statistics<T>(statistics), s.Vector<N>(weight), s.Vector<N>(bias),
                                  s.Matrix<N>(out), s.rows, s.width},
        x);
  });
}

void NormBackward(const at::Tensor& d_out, const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight,
                  const at::Tensor& d_x, const at::Tensor& d_weight, const at::Tensor& d_bias) {
  const Shape s(x);
  Dispatch(d_out, [&]<typename T, typename N>(T, N) {
    const N* const d = s.Matrix<N>(d_out);
    const T *const from = s.Matrix<T>(x), *const st = s.Statistics<T>(statistics);
    Run(programs::NormBackward<T, N>{d, from, st, s.Vector<N>(weight), s.Matrix<T>(d_x), s.rows, s.width}, x);
    AddColumns(programs::NormVectors<T, N>{d, from, st}, s, x, {d_weight, d_bias});
  });
}

void AddAndGelu(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& out) {
  const Shape s(x);
  Dispatch(x, [&]<typename T, typename N>(T, N) {
    Run(programs::AddAndGelu<T, N>{s.Matrix<N>(x), s.Vector<N>(bias), s.Matrix<N>(out), s.rows, s.width}, x);
  });
}

void GeluBackward(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& out, const at::Tensor& d,
                  const at::Tensor& d_bias) {
  const Shape s(x);
  Dispatch(x, [&]<typename T, typename N>(T, N) {
    AddColumns(programs::GeluBackward<T, N>{s.Matrix<N>(x), s.Vector<N>(bias), s.Matrix<N>(out), s.Matrix<N>(d)}, s, x,
               {d_bias});
  });
}

void AddGemm(const at::Tensor& x, const at::Tensor& gemm, const at::Tensor& bias, const at::Tensor& out) {
  const Shape s(x);
  Dispatch(gemm, [&]<typename T, typename N>(T, N) {
    Run(programs::AddGemm<T, N>{s.Matrix<T>(x), s.Matrix<N>(gemm), s.Vector<N>(bias), s.Matrix<T>(out), s.rows,
                                s.width},
        x);
  });
}

void AddColumnSums(const at::Tensor& d, const at::Tensor& sums) {
  const Shape s(d);
  Dispatch(d,
           [&]<typename T, typename N>(T, N) { AddColumns(programs::SumColumns<T, N>{s.Matrix<N>(d)}, s, d, {sums}); });
}

void NarrowAndSum(const at::Tensor& d, const at::Tensor& narrow, const at::Tensor& sums) {
  const Shape s(d);
  Dispatch(narrow, [&]<typename T, typename N>(T, N) {
    AddColumns(programs::NarrowAndSum<T, N>{s.Matrix<T>(d), s.Matrix<N>(narrow)}, s, d, {sums});
  });
}

void CrossEntropy(const at::Tensor& logits, const at::Tensor& targets, double scale, const at::Tensor& loss_sum,
                  const at::Tensor& loss_scale) {
  const Shape s(logits);
  TORCH_CHECK(logits.stride(1) == 1 || s.width == 1, "row kernels take whole rows");
  Dispatch(logits, [&]<typename T, typename N>(T, N) {
    const at::Tensor losses =
        at::empty({s.rows}, logits.options().dtype(std::is_same_v<T, double> ? at::kDouble : at::kFloat));
    Run(programs::CrossEntropy<T, N>{Numbers<N>(logits), logits.stride(0), s.Contiguous<int64_t>(targets, s.rows),
                                     Numbers<T>(losses), static_cast<T>(scale),
                                     loss_scale.defined() ? s.Contiguous<float>(loss_scale, 1) : nullptr, s.rows,
                                     s.width},
        logits);
    Run(programs::LossTotal<T>{Numbers<T>(losses), s.Contiguous<double>(loss_sum, 1), s.rows}, logits);
  });
}

}  // namespace muster::units::device
