// Causal attention by LibTorch's operator, forward and backward, for blocks on GPUs: the implementation that
// attention_choice.h enables for the process. The only part of such a block that autograd differentiates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/units/dropout.h"

namespace muster::units {

// What a query sees of the keys: its own and those before it, or of these the last `window`.
struct KeyWindow {
  int64_t window = 0;  // 0: all
  // Which of its keys a block of queries sees; null: made for each call.
  std::shared_ptr<const at::Tensor> mask = nullptr;
};
// With the mask, one for all units that ask for the same. `tokens`: of a sequence; a window as wide is none. `options`:
// those of q.
KeyWindow MakeKeyWindow(int64_t window, int64_t tokens, const at::TensorOptions& options);

// Causal attention of q [sequences, heads, queries, head] to k and v [sequences, key_value_heads, keys, head], by
// LibTorch's operator or, with dropout, by products, whose weights take memory of queries times keys. The queries are
// those of the last keys. Differentiable.
//
// Dropout drops weights after the softmax: element (head * tokens + query) * tokens + key of a sequence. Where
// there are fewer queries than keys, or fewer keys than tokens, dropout.rows says which these are.
//
// LibTorch's operator has no window, so queries go by blocks to the keys that one of a block sees, under a mask
// (models::BlocksOfWindow): time and memory grow with tokens times window. Keys and values are repeated for the heads
// that share them, since of the kernels on GPUs that take a mask only plain GEMMs group heads.
at::Tensor AttendCausally(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const DropoutPlace& dropout,
                          const KeyWindow& seen = {});

// For blocks with a hand-written backward: q [sequences, tokens, heads, head], k and v [sequences, tokens,
// key_value_heads, head], which may be views. Returns [sequences x tokens, heads x head]. If `kept` is not null, it
// receives what the backward needs: views of q, k and v, which must not change until then, the result, and autograd's
// graph, which adds the softmax's log-sums.
at::Tensor AttendByOperator(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            std::vector<at::Tensor>* kept, const DropoutPlace& dropout = {},
                            const KeyWindow& seen = {});

// From `d_out`, the gradient of the result, those of q, k and v: beside each other in d_qkv [sequences x tokens,
// (heads + 2 key_value_heads) x head].
void AttendByOperatorBackward(const std::vector<at::Tensor>& kept, const at::Tensor& d_out, at::Tensor d_qkv);

}  // namespace muster::units
