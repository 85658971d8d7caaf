#include "worker/units/cuda/device_rows.h"

#include <ATen/ops/empty.h>

#include <type_traits>

#include "worker/units/cuda/row_programs.h"
#include "worker/units/cuda/run_program.h"

namespace muster::units::device {

void DropoutFactors(const DropoutPlace& place, int64_t tokens, int64_t first_row, const at::Tensor& out) {
  const Shape s(out);
  const DropoutRows of = place.rows.Of(tokens, s.width);
  const at::Tensor& there = place.step_on_device;
  Run(programs::DropoutFactors{s.Matrix<float>(out), place.seed ^ kDropoutKey, place.step, place.place, place.least(),
                               place.scale(), place.first_sample, place.first_element, tokens, first_row, s.rows,
                               s.width, of.begin, of.size, of.apart, of.width,
                               there.defined() ? s.Contiguous<int64_t>(there, 1) : nullptr},
      out);
}

void Norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out,
          const at::Tensor& statistics) {
  const Shape s(x);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    Run(programs::Norm<T, N>{s.Matrix<T>(x), s.Vector<N>(weight), s.Vector<N>(bias), s.Matrix<N>(out),
                             s.Statistics<T>(statistics, 2), s.rows, s.width},
        x);
  });
}

void AddAndNorm(const at::Tensor& x, const at::Tensor& gemm, const at::Tensor& gemm_bias, const at::Tensor& weight,
                const at::Tensor& bias, const at::Tensor& sum, const at::Tensor& out, const at::Tensor& statistics) {
  const Shape s(x);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    Run(programs::AddAndNorm<T, N>{s.Matrix<T>(x), s.Matrix<N>(gemm), s.Vector<N>(gemm_bias), s.Vector<N>(weight),
                                   s.Vector<N>(bias), s.Matrix<T>(sum), s.Matrix<N>(out),
                                   s.Statistics<T>(statistics, 2), s.rows, s.width},
        x);
  });
}

void NormAgain(const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight, const at::Tensor& bias,
               const at::Tensor& out) {
  const Shape s(x);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    Run(programs::NormAgain<T, N>{s.Matrix<T>(x), s.Statistics<T>(statistics, 2), s.Vector<N>(weight),
                                  s.Vector<N>(bias), s.Matrix<N>(out), s.rows, s.width},
        x);
  });
}

void NormBackward(const at::Tensor& d_out, const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight,
                  const at::Tensor& d_x, const at::Tensor& d_weight, const at::Tensor& d_bias) {
  const Shape s(x);
  Dispatch(d_out, [&]<typename T, typename N>(T, N) {
    const N* const d = s.Matrix<N>(d_out);
    const T *const from = s.Matrix<T>(x), *const st = s.Statistics<T>(statistics, 2);
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
