// Causal scaled dot product attention on a CPU (Vaswani et al. 2017), forward and backward, by blocks of queries over
// their preceding keys. LibTorch's fused CPU operator repacks each small block and returns three gradients that must be
// concatenated; this one writes directly where the next GEMM reads.
//
// q [sequences, tokens, heads, head]; k and v [sequences, tokens, key_value_heads, head]. Heads are grouped (Ainslie et
// al. 2023): `heads` is a multiple of key_value_heads, and head h reads key/value head h / (heads / key_value_heads),
// as after Hugging Face's repeat_kv. These are views whose heads lie side by side and whose tokens are equally far
// apart, from one sequence to the next as well: a select of [.., 3, heads, head] and a slice of a wider projection need
// no copy. out is contiguous, [sequences, tokens, heads * head] in any shape.
//
// The queries may be those of a part of the tokens, where ranks share a sequence: q then has those at the positions of
// `runs`, in their order, one run after another (models/sequence.h), and k and v have all tokens. Without runs it has
// all. Keys that no query sees have a gradient of zero.
//
// `window` keys at most are seen by a query, its own and those before it; 0: all before it. Blocks leave out the keys
// that none of their queries sees, so time and scratch memory grow with the window, not with the tokens.
//
// All tensors are on the CPU and of one dtype: bf16, fp16, fp32 or float64; log_sums in fp32 for bf16 and fp16, whose
// heads are computed in fp32 too. LibTorch's threads share the heads in forward and the groups in backward, so results
// do not depend on their number. Thread-safe for different outputs. Another layout or dtype is a c10::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/sequence.h"
#include "worker/units/dropout.h"

namespace muster::units {

// log_sums [sequences, heads, queries] are kept for the backward. `dropout` drops weights after the softmax: element
// (head * tokens + query) * tokens + key of a sequence of so many keys, where `query` is its position.
void Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
            const at::Tensor& log_sums, const DropoutPlace& dropout = {}, int64_t window = 0,
            const std::vector<models::TokenRun>& runs = {});

// d_q, d_k and d_v, laid out like q, k and v, become their gradients, from d_out, that of out. Those of k and v are
// summed over the heads of their group, in the order of the heads.
void AttendBackward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                    const at::Tensor& log_sums, const at::Tensor& d_out, const at::Tensor& d_q, const at::Tensor& d_k,
                    const at::Tensor& d_v, const DropoutPlace& dropout = {}, int64_t window = 0,
                    const std::vector<models::TokenRun>& runs = {});

}  // namespace muster::units
