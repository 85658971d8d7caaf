#include <c10/util/Exception.h>

#include "worker/units/cuda/device_rows.h"
#include "worker/units/cuda/llama_programs.h"
#include "worker/units/cuda/run_program.h"

namespace muster::units::device {
namespace {

// A view of heads [rows, heads, width of a head], on the device of `on`.
template <typename N>
programs::Heads<N> HeadsOf(const at::Tensor& t, const at::Tensor& on) {
  TORCH_CHECK(t.dim() == 3 && t.device() == on.device() && (t.size(2) <= 1 || t.stride(2) == 1) &&
                  (t.size(1) <= 1 || t.stride(1) == t.size(2)),
              "a view of heads is [rows, heads, head], with heads side by side");
  return {Numbers<N>(t), t.stride(0), static_cast<int>(t.size(1)), static_cast<int>(t.size(2))};
}

// Each head is a row.
Shape HeadsAsRows(const at::Tensor& t) { return {t.size(0) * t.size(1), t.size(2), t.device()}; }

}  // namespace

void RmsNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon, const at::Tensor& out,
             const at::Tensor& statistics) {
  const Shape s(x);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    Run(programs::RmsNorm<T, N>{s.Matrix<T>(x), s.Vector<N>(weight), static_cast<T>(epsilon), s.Matrix<N>(out),
                                s.Statistics<T>(statistics, 1), s.rows, s.width},
        x);
  });
}

void AddAndRmsNorm(const at::Tensor& x, const at::Tensor& gemm, const at::Tensor& weight, double epsilon,
                   const at::Tensor& sum, const at::Tensor& out, const at::Tensor& statistics) {
  const Shape s(x);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    Run(programs::AddAndRmsNorm<T, N>{s.Matrix<T>(x), s.Matrix<N>(gemm), s.Vector<N>(weight), static_cast<T>(epsilon),
                                      s.Matrix<T>(sum), s.Matrix<N>(out), s.Statistics<T>(statistics, 1), s.rows,
                                      s.width},
        x);
  });
}

void RmsNormAgain(const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight, const at::Tensor& out) {
  const Shape s(x);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    Run(programs::RmsNormAgain<T, N>{s.Matrix<T>(x), s.Statistics<T>(statistics, 1), s.Vector<N>(weight),
                                     s.Matrix<N>(out), s.rows, s.width},
        x);
  });
}

void RmsNormBackward(const at::Tensor& d_out, const at::Tensor& x, const at::Tensor& statistics,
                     const at::Tensor& weight, const at::Tensor& d_x, const at::Tensor& d_weight) {
  const Shape s(x);
  Dispatch(d_out, [&]<typename T, typename N>(T, N) {
    const N* const d = s.Matrix<N>(d_out);
    const T *const from = s.Matrix<T>(x), *const st = s.Statistics<T>(statistics, 1);
    Run(programs::RmsNormBackward<T, N>{d, from, st, s.Vector<N>(weight), s.Matrix<T>(d_x), s.rows, s.width}, x);
    AddColumns(programs::RmsNormVector<T, N>{d, from, st}, s, x, {d_weight});
  });
}

void Add(const at::Tensor& x, const at::Tensor& gemm, const at::Tensor& out) {
  const Shape s(x);
  Dispatch(gemm, [&]<typename T, typename N>(T, N) {
    Run(programs::Add<T, N>{s.Matrix<T>(x), s.Matrix<N>(gemm), s.Matrix<T>(out), s.rows, s.width}, x);
  });
}

void SwiGlu(const at::Tensor& gate_up, const at::Tensor& out) {
  const Shape s(out);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    Run(programs::SwiGlu<T, N>{s.Contiguous<N>(gate_up, 2 * s.rows * s.width), s.Matrix<N>(out), s.rows, s.width}, out);
  });
}

void SwiGluBackward(const at::Tensor& gate_up, const at::Tensor& out, const at::Tensor& d,
                    const at::Tensor& d_gate_up) {
  const Shape s(out);
  Dispatch(out, [&]<typename T, typename N>(T, N) {
    const int64_t both = 2 * s.rows * s.width;
    Run(programs::SwiGluBackward<T, N>{s.Contiguous<N>(gate_up, both), s.Matrix<N>(d), s.Matrix<N>(out),
                                       s.Contiguous<N>(d_gate_up, both), s.rows, s.width},
        out);
  });
}

void Rope(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, int64_t tokens, int64_t position,
          bool back) {
  const Shape s(cosine);
  Dispatch(x, [&]<typename T, typename N>(T, N) {
    Run(programs::Rope<T, N>{HeadsOf<N>(x, cosine), s.Matrix<T>(cosine), s.Matrix<T>(sine),
                             static_cast<T>(back ? -1 : 1), tokens, position, x.size(0)},
        x);
  });
}

void HeadNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon, const at::Tensor& out,
              const at::Tensor& statistics) {
  const Shape s = HeadsAsRows(x);
  Dispatch(x, [&]<typename T, typename N>(T, N) {
    Run(programs::HeadNorm<T, N>{HeadsOf<N>(x, x), s.Vector<N>(weight), static_cast<T>(epsilon), HeadsOf<N>(out, x),
                                 s.Statistics<T>(statistics, 1), x.size(0)},
        x);
  });
}

// The weight's gradient first: then d is overwritten.
void HeadNormBackward(const at::Tensor& d, const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight,
                      const at::Tensor& d_weight) {
  const Shape s = HeadsAsRows(x);
  Dispatch(x, [&]<typename T, typename N>(T, N) {
    const programs::Heads<N> gradient = HeadsOf<N>(d, x), from = HeadsOf<N>(x, x);
    const T* const st = s.Statistics<T>(statistics, 1);
    AddColumns(programs::HeadNormVector<T, N>{gradient, from, st}, s, x, {d_weight});
    Run(programs::HeadNormBackward<T, N>{gradient, from, st, s.Vector<N>(weight), x.size(0)}, x);
  });
}

}  // namespace muster::units::device
