// What lies between the products of a transformer on a CPU: passes over the rows of matrices, each reading and writing
// memory once. LibTorch's own operators do the same one by one, with a pass over memory and a set of threads for each.
//
//   Norm(x, weight, bias, normed, statistics);
//
// Tensors are contiguous CPU matrices [rows, width] of fp32 or float64, vectors [width], statistics [rows, 2] (mean,
// then 1 / standard deviation); all of one dtype. Outputs exist already. Gradients of vectors are added to. Work is
// split over LibTorch's threads by rows, so results are bit-equal for equal threads. Thread-safe for different outputs.
#pragma once

#include <ATen/core/Tensor.h>

namespace muster::units {

// out = x_hat weight + bias, x_hat = (x - mean) / sqrt(variance + 1e-5) (Ba et al. 2016).
void Norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out,
          const at::Tensor& statistics);

// sum = x + sum + sum_bias, then out = Norm(sum).
void AddAndNorm(const at::Tensor& x, const at::Tensor& sum, const at::Tensor& sum_bias, const at::Tensor& weight,
                const at::Tensor& bias, const at::Tensor& out, const at::Tensor& statistics);

// Norm once more, from its statistics.
void NormAgain(const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight, const at::Tensor& bias,
               const at::Tensor& out);

// d_x += the gradient of Norm's input; d_weight and d_bias += those of its vectors.
void NormBackward(const at::Tensor& d_out, const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& weight,
                  const at::Tensor& d_x, const at::Tensor& d_weight, const at::Tensor& d_bias);

// x += bias, then out = gelu(x) by the tanh approximation (Hendrycks and Gimpel 2016), which is x sigmoid(2 u) with
// u = sqrt(2 / pi) (x + 0.044715 x^3).
void AddAndGelu(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& out);

// out = gelu(x) once more; d becomes from the gradient of gelu(x) that of x; d_bias += its column sums.
void GeluBackward(const at::Tensor& x, const at::Tensor& out, const at::Tensor& d, const at::Tensor& d_bias);

// out = x + bias.
void AddBias(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& out);

// sums += column sums of d.
void AddColumnSums(const at::Tensor& d, const at::Tensor& sums);

// The sum over the rows of -log softmax(logits)[target]; targets int64 [rows]. With `scale` other than zero the logits
// become scale times their gradient.
double CrossEntropy(const at::Tensor& logits, const at::Tensor& targets, double scale);

}  // namespace muster::units
