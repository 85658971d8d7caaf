// Causal attention of a rank's own tokens to the keys and values of all tokens of their sequences (sequence_ranks.h).
// Those that it gathers from the other ranks are not kept: backward gathers them again. So forward has one collective,
// and backward two.
//
// q [samples, own tokens, heads, head], k and v [samples, own tokens, key_value_heads, head] may be views, as
// cpu_attention.h takes them. By our own code or LibTorch's operator as blocks choose it (RowCode). `dropout`: of the
// weights of all tokens (Context::DropoutOfWeights); with LibTorch's code by products, as AttendCausally.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/units/operator_attention.h"
#include "worker/units/row_kernels.h"
#include "worker/units/sequence_ranks.h"

namespace muster::units {

// What backward takes beside q, k and v.
struct SequenceAttention {
  at::Tensor out;       // [samples x own tokens, heads x head]
  at::Tensor log_sums;  // of our own code
};

SequenceAttention AttendToSequence(const OwnTokens& own, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const DropoutPlace& dropout, const KeyWindow& seen, RowCode rows);

// `started`: OwnTokens::StartGather of k and v. From d_out, the gradient of out, those of q, k and v, laid out as
// these.
void AttendToSequenceBackward(const OwnTokens& own, at::Tensor started, const at::Tensor& q,
                              const SequenceAttention& attended, const at::Tensor& d_out, const at::Tensor& d_q,
                              const at::Tensor& d_k, const at::Tensor& d_v, const DropoutPlace& dropout,
                              const KeyWindow& seen, RowCode rows);

// By LibTorch's operator, and differentiable.
at::Tensor AttendToSequenceByOperator(const OwnTokens& own, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const DropoutPlace& dropout, const KeyWindow& seen);

}  // namespace muster::units
