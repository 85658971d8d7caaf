// Causal attention by LibTorch's operator, forward and backward, for blocks on GPUs: the implementation that
// attention_choice.h enables for the process. The only part of such a block that autograd differentiates.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace muster::units {

// `qkv` [sequences, tokens, 3, heads, width / heads]. Returns [sequences x tokens, width]. If `kept` is not null, it
// receives what the backward needs: views of `qkv`, which must not change until then, the result, and autograd's
// graph, which adds the softmax's log-sums.
at::Tensor AttendByOperator(const at::Tensor& qkv, std::vector<at::Tensor>* kept);

// d_qkv [sequences x tokens, 3 x width] becomes the gradient of qkv, from `d_out`, that of the result.
void AttendByOperatorBackward(const std::vector<at::Tensor>& kept, const at::Tensor& d_out, at::Tensor d_qkv);

}  // namespace muster::units
