// The operations of row_kernels.h and llama_rows.h by the programs that GPUs run (row_programs.h, llama_programs.h): on
// a CUDA tensor's device on the current stream, on a CPU by a loop. Same arguments and errors; float64 on a CPU only.
// Sums over rows take a scratch of one row in 32 of the wide dtype, for each vector.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/units/dropout.h"

namespace muster::units::device {

// out fp32 [rows, width] = the place's factors from row `first_row` on, `tokens` rows of each sample.
void DropoutFactors(const DropoutPlace& place, int64_t tokens, int64_t first_row, const at::Tensor& out);

void Norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out,
          const at::Tensor& statistics);
void AddAndNorm(const at::Tensor& x, const at::Tensor& gemm, const at::Tensor& gemm_bias, const at::Tensor& weight,
                const at::Tensor& bias, const at::Tensor& sum, const at::Tensor& out, const at::Tensor& statistics);
void NormAgain(const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight, const at::Tensor& bias,
               const at::Tensor& out);
void NormBackward(const at::Tensor& d_out, const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight,
                  const at::Tensor& d_x, const at::Tensor& d_weight, const at::Tensor& d_bias);
void AddAndGelu(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& out);
void GeluBackward(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& out, const at::Tensor& d,
                  const at::Tensor& d_bias);
void AddGemm(const at::Tensor& x, const at::Tensor& gemm, const at::Tensor& bias, const at::Tensor& out);
void AddColumnSums(const at::Tensor& d, const at::Tensor& sums);
void NarrowAndSum(const at::Tensor& d, const at::Tensor& narrow, const at::Tensor& sums);
void CrossEntropy(const at::Tensor& logits, const at::Tensor& targets, double scale, const at::Tensor& loss_sum,
                  const at::Tensor& loss_scale);

void RmsNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon, const at::Tensor& out,
             const at::Tensor& statistics);
void AddAndRmsNorm(const at::Tensor& x, const at::Tensor& gemm, const at::Tensor& weight, double epsilon,
                   const at::Tensor& sum, const at::Tensor& out, const at::Tensor& statistics);
void RmsNormAgain(const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight, const at::Tensor& out);
void RmsNormBackward(const at::Tensor& d_out, const at::Tensor& x, const at::Tensor& statistics,
                     const at::Tensor& weight, const at::Tensor& d_x, const at::Tensor& d_weight);
void Add(const at::Tensor& x, const at::Tensor& gemm, const at::Tensor& out);
void SwiGlu(const at::Tensor& gate_up, const at::Tensor& out);
void SwiGluBackward(const at::Tensor& gate_up, const at::Tensor& out, const at::Tensor& d, const at::Tensor& d_gate_up);
void Rope(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, int64_t tokens, int64_t position,
          bool back);
void HeadNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon, const at::Tensor& out,
              const at::Tensor& statistics);
void HeadNormBackward(const at::Tensor& d, const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight,
                      const at::Tensor& d_weight);

}  // namespace muster::units::device
