// The fused row operations between the GEMMs of a transformer. Each reads and writes memory once, where LibTorch's
// separate operators take a pass over memory and a launch or a parallel region each.
//
//   Norm(x, weight, bias, normed, statistics);
//
// Tensors are contiguous matrices [rows, width], vectors [width], statistics [rows, 2] (mean, then 1 / standard
// deviation), of one device. GEMM inputs and outputs and the parameters are *narrow*: bf16, fp16, fp32 or, on a CPU,
// float64. The residual stream, statistics and gradients of vectors are *wide*: fp32 for bf16 and fp16, else the same.
// All arithmetic is in the wide dtype. The caller allocates outputs. Gradients of vectors are added to.
//
// CPU tensors take the CPU's vector code, split over LibTorch's threads by rows; CUDA tensors take GPU programs on the
// current stream (cuda/row_programs.h), which `code` selects for CPU tensors, too. Results are bit-equal for equal
// threads. Thread-safe for different outputs. A tensor of another dtype is a c10::Error.
#pragma once

#include <ATen/core/Tensor.h>

namespace muster::units {

// The code for CPU tensors.
enum class RowCode {
  kVector,  // the CPU's own
  kDevice,  // the programs that GPUs run, by a loop on one thread: slow, for tests and for finding faults
};

inline constexpr double kNormEpsilon = 1e-5;  // of Norm and what belongs to it

// The wide dtype that belongs to a narrow one.
at::ScalarType WideType(at::ScalarType narrow);
// Whether it is another one: bf16 or fp16.
inline bool IsNarrow(const at::Tensor& t) { return WideType(t.scalar_type()) != t.scalar_type(); }

// out = x_hat weight + bias, x_hat = (x - mean) / sqrt(variance + 1e-5) (Ba et al. 2016). x wide, out narrow.
void Norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out,
          const at::Tensor& statistics, RowCode code = RowCode::kVector);

// sum = x + gemm + gemm_bias, then out = Norm(sum). x and sum wide, the others narrow; sum may be gemm.
void AddAndNorm(const at::Tensor& x, const at::Tensor& gemm, const at::Tensor& gemm_bias, const at::Tensor& weight,
                const at::Tensor& bias, const at::Tensor& sum, const at::Tensor& out, const at::Tensor& statistics,
                RowCode code = RowCode::kVector);

// Recomputes Norm from its statistics.
void NormAgain(const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight, const at::Tensor& bias,
               const at::Tensor& out, RowCode code = RowCode::kVector);

// d_x += the gradient of Norm's input; d_weight and d_bias += those of its vectors. d_out narrow, d_x wide.
void NormBackward(const at::Tensor& d_out, const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight,
                  const at::Tensor& d_x, const at::Tensor& d_weight, const at::Tensor& d_bias,
                  RowCode code = RowCode::kVector);

// out = gelu(x + bias) by the tanh approximation (Hendrycks and Gimpel 2016), which is x sigmoid(2 u) with
// u = sqrt(2 / pi) (x + 0.044715 x^3). Narrow.
void AddAndGelu(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& out, RowCode code = RowCode::kVector);

// Recomputes out = gelu(x + bias); d turns from the gradient of out into that of x; d_bias += its column sums.
void GeluBackward(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& out, const at::Tensor& d,
                  const at::Tensor& d_bias, RowCode code = RowCode::kVector);

// out = x + gemm + bias. x and out wide, the others narrow; out may be gemm.
void AddGemm(const at::Tensor& x, const at::Tensor& gemm, const at::Tensor& bias, const at::Tensor& out,
             RowCode code = RowCode::kVector);

// sums += column sums of d, which is wide or narrow.
void AddColumnSums(const at::Tensor& d, const at::Tensor& sums, RowCode code = RowCode::kVector);

// narrow = d, and sums += column sums of d.
void NarrowAndSum(const at::Tensor& d, const at::Tensor& narrow, const at::Tensor& sums,
                  RowCode code = RowCode::kVector);

// loss_sum += the sum over the rows of -log softmax(logits)[target]; targets int64 [rows], loss_sum a float64 scalar of
// the same device. With `scale` other than zero the logits become scale times their gradient, times `loss_scale` (fp32
// [1] of the same device) if it is defined. The row stride of logits may exceed their width.
void CrossEntropy(const at::Tensor& logits, const at::Tensor& targets, double scale, const at::Tensor& loss_sum,
                  RowCode code = RowCode::kVector, const at::Tensor& loss_scale = {});

// The three below convert between narrow matrices and fp32 panels on a CPU (gemm.h). Row strides may exceed widths.
//
// to = from, widened from bf16 or fp16 to fp32, which is exact.
void Widen(const at::Tensor& from, const at::Tensor& to);

// to = from + bias, rounded once from fp32 to bf16 or fp16. `bias` [columns] is of that dtype or undefined.
void Round(const at::Tensor& from, const at::Tensor& bias, const at::Tensor& to);

// to += alpha * gemm, where `gemm` is rounded to bf16 first if it is fp32; `to` is fp32.
void AddRounded(const at::Tensor& gemm, double alpha, const at::Tensor& to);

}  // namespace muster::units
